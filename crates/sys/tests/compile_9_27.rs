mod common;
use qkvault_sys::*;
const P27: &str = include_str!("../../../profiles/h200-sxm.driver-13.0.cudnn-9.27.json");
const P19: &str = include_str!("../../../profiles/h200-sxm.driver-13.0.cudnn-9.19.json");
#[test]
fn first() {
    let Some(library) = common::open(&Search::default()) else {
        return;
    };
    let graph = common::attention(&library).unwrap();
    let device = common::device(&library, if library.version() < Version::new(9, 27, 0) { P19 } else { P27 }).unwrap();
    let engines = common::engines(&graph, &device, HeurMode::A).unwrap();
    println!("{} engines, {}", engines.len(), library.version());
    let t = std::time::Instant::now();
    let plan = common::plan(&engines).unwrap();
    println!("{:?}", t.elapsed());
    let json = plan.get_bytes(AttributeName::EXECUTION_PLAN_JSON_REPRESENTATION).unwrap();
    println!(
        "{} bytes, workspace {}",
        json.len(),
        plan.get_one::<i64>(AttributeName::EXECUTION_PLAN_WORKSPACE_SIZE).unwrap()
    );
    println!("{:#?}", library.files());
    println!("{}", Handle::create(&library).unwrap_err());
}
