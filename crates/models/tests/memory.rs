//! Files that are large, or lie about what is in them, take at most 20 times their size and 64 MB of memory, and a few
//! seconds. Each is read in a process of its own, which tells its peak.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use qkvault_graph::text;
use qkvault_models::{Manifest, Model};

/// The variable that tells the process of a case its file.
const FILE: &str = "QKVAULT_TEST_CHILD";

/// Reads a file as its name says, and prints what came of it and the process's peak of resident memory.
#[test]
fn reader_of_one_file() {
    let Some(file) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let read = |path: &Path| std::fs::read_to_string(path).expect("a text");
    let result = match file.extension().and_then(|end| end.to_str()) {
        Some("txt") => text::parse(&read(&file)).map(drop).map_err(|error| error.to_string()),
        Some("toml" | "manifest") => {
            let all = Manifest::parse(&read(&file)).and_then(|manifest| manifest.attentions());
            all.map(drop).map_err(|refusal| refusal.to_string())
        }
        _ => Model::find(&file).map(drop).map_err(|refusal| refusal.to_string()),
    };
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    let told = match result {
        Ok(()) => "it reads".to_owned(),
        Err(error) => format!("{} bytes of error: {}", error.len(), error.chars().take(600).collect::<String>()),
    };
    println!("\npeak {} {}", peak.trim().trim_end_matches(" kB"), told.replace('\n', " "));
}

/// Reads a file in a process of its own: its error, after a check of the peak and the time.
fn bounded(name: &str, bytes: &[u8]) -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::write(&file, bytes).expect("it is written");
    let started = Instant::now();
    let mut child = Command::new(std::env::current_exe().expect("a program has a path"));
    child.args(["--exact", "reader_of_one_file", "--nocapture"]).env(FILE, &file);
    let said = child.output().expect("it starts");
    let (took, out) = (started.elapsed(), String::from_utf8_lossy(&said.stdout).into_owned());
    std::fs::remove_file(&file).expect("it is there");
    assert!(said.status.success(), "{name}: {:?} {out} {}", said.status, String::from_utf8_lossy(&said.stderr));
    let line = out.lines().find_map(|line| line.strip_prefix("peak ")).expect("the child's line");
    let (peak, told) = line.split_once(' ').expect("two words");
    let (peak, size) = (peak.parse::<u64>().expect("a number") * 1024, bytes.len() as u64);
    assert!(peak <= 20 * size + (64 << 20), "{name}: {peak} bytes for a file of {size}");
    assert!(took < Duration::from_secs(60), "{name}: {took:?}");
    told.to_owned()
}

fn number(out: &mut Vec<u8>, n: u64) {
    out.extend(n.to_le_bytes());
}

/// The head of a GGUF file of so many entries, and its first one: the architecture.
fn gguf(entries: u64) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    number(&mut out, 0);
    number(&mut out, entries);
    key(&mut out, "general.architecture");
    out.extend(8_u32.to_le_bytes());
    number(&mut out, 5);
    out.extend(b"llama");
    out
}

fn key(out: &mut Vec<u8>, name: &str) {
    number(out, name.len() as u64);
    out.extend(name.as_bytes());
}

fn list(out: &mut Vec<u8>, kind: u32, count: u64) {
    out.extend(kind.to_le_bytes());
    number(out, count);
}

const LARGE: usize = 48 << 20;

#[test]
fn audit_12_a_gguf_file_of_nested_lists_takes_no_more_memory_than_its_size() {
    for name in ["llama.attention.head_count", "tokenizer.x"] {
        let mut out = gguf(2);
        key(&mut out, name);
        out.extend(9_u32.to_le_bytes());
        let inner = 4096_u64;
        let lists = (LARGE as u64) / (inner + 12);
        list(&mut out, 9, lists.min(4096));
        for _ in 0..lists.min(4096) {
            list(&mut out, 0, inner);
            out.resize(out.len() + inner as usize, 7);
        }
        bounded("nested.gguf", &out);
        // Empty lists, of 12 bytes each.
        let mut out = gguf(2);
        key(&mut out, name);
        out.extend(9_u32.to_le_bytes());
        list(&mut out, 9, (LARGE / 12) as u64);
        (0..LARGE / 12).for_each(|_| list(&mut out, 0, 0));
        bounded("empty.gguf", &out);
    }
}

#[test]
fn audit_12_a_gguf_file_of_many_short_lists_takes_no_more_memory_than_its_size() {
    for end in ["attention.head_count", "x"] {
        let (inner, lists) = (4096_u64, 12_000);
        let mut out = gguf(lists + 1);
        for at in 0..lists {
            key(&mut out, &format!("{at}.{end}"));
            out.extend(9_u32.to_le_bytes());
            list(&mut out, 0, inner);
            out.resize(out.len() + inner as usize, 7);
        }
        let told = bounded("short.gguf", &out);
        assert!(end == "x" || (told.contains("values about attention") && told.contains("262144")), "{told}");
    }
}

/// A config with a field whose value is repeated up to 15 MB.
fn config(field: &str, open: &str, item: &str, close: &str) -> Vec<u8> {
    let mut out = String::from(
        r#"{"model_type":"llama","num_attention_heads":8,"num_hidden_layers":12,"hidden_size":512,"sliding_window":64,"#,
    );
    let _ = write!(out, "\"{field}\":{open}{item}");
    while out.len() < 15 << 20 {
        if open.starts_with('[') || open.starts_with('{') {
            out.push(',');
        }
        out.push_str(item);
    }
    let _ = write!(out, "{close}}}");
    out.into_bytes()
}

#[test]
fn audit_12_a_config_of_15_mb_takes_at_most_20_times_its_size() {
    for (name, item) in
        [("numbers", "0"), ("lists", "[]"), ("objects", r#"{"":0}"#), ("words", "\"\""), ("empty", "{}")]
    {
        for field in ["x", "layer_types", "full_attn_idxs", "no_rope_layers", "block_configs", "local_layer_ids"] {
            let told = bounded(&format!("{name}.json"), &config(field, "[", item, "]"));
            assert!(told.contains("config.size") && told.contains("values"), "{name} {field}: {told}");
        }
    }
    // As many as there may be.
    for (name, item, count) in
        [("numbers", "0,", 520_000), ("objects", r#"{"":0},"#, 65_000), ("words", "\"ab\",", 520_000)]
    {
        let list = item.repeat(count);
        let text = format!(r#"{{"model_type":"llama","x":[{}]}}"#, list.trim_end_matches(','));
        let told = bounded(&format!("most-{name}.json"), text.as_bytes());
        assert!(!told.contains("config.size"), "{told}");
    }
    bounded("keys.json", &config("x", "{", r#""a":1"#, "}"));
    // One text is one value.
    for field in ["hybrid_override_pattern", "sliding_window_pattern", "x"] {
        bounded("text.json", &config(field, "\"", "M", "\""));
    }
}

/// Lists that are few bytes and stand for many.
#[test]
fn audit_12_a_list_that_repeats_takes_as_much_memory_as_a_model_has_layers() {
    let mut period = "\"global\",".repeat(4000);
    period.pop();
    let groups = format!("[[{period}],4096],").repeat(15);
    let text = format!(
        r#"{{"model_type":"gpt_neo","num_heads":8,"num_layers":12,"hidden_size":512,"attention_types":[{}]}}"#,
        groups.trim_end_matches(',')
    );
    let told = bounded("periods.json", text.as_bytes());
    assert!(told.contains("attention_types") && told.contains("4096"), "{told}");
    // Wrong entries, each with a reason of its own.
    let places: Vec<String> = (0..200_000).map(|at| format!("\"{at}\"")).collect();
    let text = format!(
        r#"{{"model_type":"llama","num_attention_heads":8,"num_hidden_layers":12,"hidden_size":512,"full_attn_idxs":[{}]}}"#,
        places.join(",")
    );
    let told = bounded("places.json", text.as_bytes());
    assert!(told.contains("full_attn_idxs") && told.starts_with(|c: char| c.is_ascii_digit()), "{told}");
    let length: usize = told.split(' ').next().and_then(|n| n.parse().ok()).expect("its length");
    assert!(length < 100_000, "{length}");
}

#[test]
fn audit_12_a_manifest_of_15_mb_takes_at_most_20_times_its_size() {
    let head = "qkvault-manifest = 1\n";
    let filled = |start: &str, item: &str, end: &str| {
        let count = (15 << 20) / item.len();
        format!("{head}{start}{}{end}", item.repeat(count))
    };
    for (name, text) in [
        ("entries", filled("", "[[attention]]\n", "")),
        ("whole", filled("", "[[attention]]\ntext='q: bf16 [1,1,1,1]'\n", "")),
        ("notes", filled("notes=[", "'',", "]\n")),
        ("numbers", filled("x=[", "0,", "]\n")),
        ("lists", filled("x=[", "[],", "]\n")),
        ("tables", filled("x=[", "{a=0},", "]\n")),
        ("sizes", filled("[[attention]]\ntext='q: bf16 [$batch,1,$seq,1]'\nbatch=[1]\nseq=[", "9,", "]\n")),
        ("comments", filled("", "#\n", "")),
    ] {
        let told = bounded(&format!("{name}.toml"), text.as_bytes());
        assert!(told.contains("config.size") && told.contains("at most"), "{name}: {told}");
    }
    let json = format!("{{\"qkvault-manifest\":1,\"attention\":[{}{{}}]}}", "{\"text\":\"\"},".repeat(1_200_000));
    bounded("json.manifest", json.as_bytes());
    // As many as there may be.
    for (name, item, count) in [("numbers", "0,", 260_000), ("lines", "\n", 260_000), ("tables", "[[a]]\n", 16_000)] {
        let (open, close) = if name == "numbers" { ("a=[", "]") } else { ("", "") };
        let text = format!("{head}{open}{}{close}", item.repeat(count));
        let told = bounded(&format!("most-{name}.toml"), text.as_bytes());
        let length: usize = told.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        assert!(!told.contains("config.size") && length < 2000, "{told}");
    }
    let whole = "[[attention]]\ntext='q: bf16 [1,1,1,1]'\n".repeat(16_000);
    bounded("most-entries.toml", format!("{head}{whole}").as_bytes());
    // One text, as often as its sizes say.
    let sizes = |n: usize| (1..=n).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
    let terms: String = (1..200).map(|at| format!("score*{at}.5+")).collect();
    let long = format!(
        "{head}[[attention]]\nbatch=[{}]\nseq=[{}]\ntext='''\nq: bf16 [$batch,1,$seq,1]\nscore_mod: {terms}score\n'''\n",
        sizes(256),
        sizes(256)
    );
    let told = bounded("grid.toml", long.as_bytes());
    assert!(told.contains("bytes of texts up to here; needed: at most 419"), "{told}");
    let plain = format!(
        "{head}[[attention]]\nbatch=[{}]\nseq=[{}]\ntext='''\nq: bf16 [$batch,32,$seq,128]\nk: [$batch,8,$seq,128]\n'''\n",
        sizes(128),
        sizes(256)
    );
    assert_eq!(bounded("plain.toml", plain.as_bytes()), "it reads");
}

#[test]
fn audit_12_a_description_of_15_mb_takes_at_most_20_times_its_size() {
    let filled =
        |item: &str| format!("q: bf16 [1,1,64,64]\nscore_mod: {}score\n", item.repeat((15 << 20) / item.len()));
    // As many words and signs as there may be.
    for item in ["1+", "-", "(", "score+", "score*", "let a=1;"] {
        let text = format!("q: bf16 [1,1,64,64]\nscore_mod: {}score\n", item.repeat(120_000 / item.len()));
        let told = bounded("most.txt", text.as_bytes());
        assert!(!told.contains("more of them"), "{item} {told}");
    }
    for (name, text) in [
        ("sum", filled("1+")),
        ("names", filled("score+")),
        ("signs", filled("-")),
        ("open", filled("(")),
        ("calls", filled("abs(")),
        ("lets", filled("let a = 1;")),
        ("scalars", filled("scalar $a: int;")),
        ("blanks", filled(" ")),
        ("comments", "#\n".repeat(7 << 20)),
        ("fields", "q: bf16 [1,1,64,64]\n".repeat(700_000)),
    ] {
        let told = bounded(&format!("{name}.txt"), text.as_bytes());
        assert!(name == "blanks" || told.contains(" of error: "), "{name}: {told}");
    }
}
