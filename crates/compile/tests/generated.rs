//! What `qkvault-kernels` writes, compiled by the real NVRTC without a GPU: each way to divide the work, each storage,
//! each feature.

use qkvault_compile::Nvrtc;
use qkvault_graph::{
    Along, Attention, Band, Conversion, ConversionKind, Corner, DType, PaddedRows, Tensor, text, validate,
};
use qkvault_kernels::recipe::RecipeStep;
use qkvault_kernels::{SM, generate, generate_conversion};
use qkvault_skip::{Need, skip};

fn attentions() -> Vec<Attention> {
    let decode = |queries: i64, d: i64| {
        Attention::bshd(4, (8, 2), (queries, 2048), d, DType::BF16).with_band(Band::CAUSAL_BOTTOM_RIGHT).with_lengths()
    };
    let paged = |mut a: Attention, page: i64| {
        let [b, _, s, d] = a.k.dims;
        a.k = Tensor::paged_nhd(b, 2, s, d, 128, page, a.k.dtype);
        a.v = a.k;
        a
    };
    let mut packed = paged(decode(40, 64), 24).with_stats();
    packed.q = Tensor::thd(4, 8, 40, 64, 100, DType::BF16);
    packed.o = packed.q;
    let mut zero = decode(5, 80).with_stats();
    zero.padded_rows = PaddedRows::Zero;
    let window =
        Attention::bshd(2, (16, 2), (1, 4096), 128, DType::F16).with_band(Band::window(Corner::BottomRight, 300));
    let expressions = "q: f16 [2,8,20,96]\nk: [2,2,500,96]\nsink: yes\noutputs: stats\n\
        score_mod: scalar $cap: float; tensor @bias: bf16[1, 8, 1, 500]; tanh(score / $cap) * $cap + @bias\n\
        mask_mod: scalar $n: int; tensor @of: i32[2, 1, 1, 500]; (key // 3) % 2 == 0 | @of == query % $n";
    vec![
        paged(decode(1, 128), 64),
        paged(decode(1, 256), 1),
        decode(16, 256),
        packed,
        zero,
        window.with_sink(),
        text::parse(expressions).expect("reads"),
    ]
}

#[test]
fn every_kind_of_source_compiles_without_a_gpu() {
    let nvrtc = match Nvrtc::open(None) {
        Ok(nvrtc) => nvrtc,
        Err(error) => return skip(Need::Cudnn, &error.to_string()),
    };
    for attention in attentions() {
        let attention = validate(attention).expect("is valid");
        let made = generate(&attention, SM).expect("is taken");
        let code = nvrtc.compile("attention.cu", &made.source, &made.options, SM);
        let code = code.unwrap_or_else(|error| panic!("{attention}: {error}"));
        for kernel in ["attend", "merge"] {
            assert!(code.windows(kernel.len()).any(|w| w == kernel.as_bytes()), "{attention} lacks {kernel}");
        }
    }
}

#[test]
fn every_kind_of_conversion_compiles_for_every_gpu_with_8_bits() {
    let nvrtc = match Nvrtc::open(None) {
        Ok(nvrtc) => nvrtc,
        Err(error) => return skip(Need::Cudnn, &error.to_string()),
    };
    let kinds = [
        ConversionKind::Delayed,
        ConversionKind::Current { power_of_two: true },
        ConversionKind::Blocks(Along::HeadDim),
        ConversionKind::Blocks(Along::Sequence),
        ConversionKind::Dequantize,
        ConversionKind::DequantizeBlocks(Along::Sequence),
    ];
    let wide = [DType::BF16, DType::F16, DType::F32].into_iter().cycle();
    let gpus = [89, 90, 100, 103, 120].into_iter().cycle();
    // Each kind with two types and two GPUs.
    for (n, ((kind, wide), sm)) in kinds.into_iter().cycle().zip(wide).zip(gpus).take(12).enumerate() {
        let dtype = if n % 2 == 0 { DType::E4M3 } else { DType::E5M2 };
        let tensor = Tensor::bshd(2, 8, 1000, 192, wide);
        let conversion = Conversion::to(dtype, tensor, kind).validate().expect("is valid");
        let made = generate_conversion(&conversion, sm).expect("is taken");
        let code = nvrtc.compile("conversion.cu", &made.source, &made.options, sm);
        let code = code.unwrap_or_else(|error| panic!("{conversion} for {sm}: {error}"));
        for step in &made.recipe.steps {
            let RecipeStep::Launch(launch) = step else { continue };
            let name = launch.function.as_bytes();
            assert!(code.windows(name.len()).any(|w| w == name), "{conversion} lacks {}", launch.function);
        }
    }
}
