//! What the compiler is asked for: the kernels of FlashAttention-4, each with everything that decides its code. The
//! names are those of `compiler.py`.
//!
//! A request is made of an attention by the program that compiles, and never read from a vault.

use serde::Serialize;

use crate::code::Function;

/// Kernels to compile, as the child process is given them: one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRequest(String);

impl KernelRequest {
    /// The kernels of a program, as text.
    ///
    /// # Errors
    ///
    /// None happens: the kernels are numbers and text.
    pub fn for_kernels(kernels: &[Kernel]) -> Result<KernelRequest, serde_json::Error> {
        serde_json::to_string(kernels).map(KernelRequest)
    }

    /// The text, which is JSON.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// A kernel to compile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Kernel {
    /// O and LSE.
    Forward(Forward),
    /// Row sums of dO · O, LSE in base 2, and zeros where dQ is summed.
    Preprocess(Preprocess),
    /// dK, dV, and dQ in f32.
    Backward(Backward),
    /// A gradient from its sums in f32.
    Postprocess(Postprocess),
}

/// What every kernel of an attention has in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Common {
    /// Element type: `f16` or `bf16`.
    pub dtype: &'static str,
    /// Head dim of queries and keys.
    pub head_dim: i64,
    /// Head dim of values.
    pub head_dim_v: i64,
    /// Query heads for a key head.
    pub group: i64,
    /// Whether the mask is bottom-right causal and nothing else.
    pub causal: bool,
    /// Whether the mask is a window.
    pub local: bool,
    /// Whether a launch gets the left bound of a window.
    pub left: bool,
    /// Whether a launch gets the right bound of a window.
    pub right: bool,
    /// Whether sequences lie one after another.
    pub packed: bool,
    /// Whether a launch gets lengths of queries.
    pub used_q: bool,
    /// Whether a launch gets lengths of keys.
    pub used_k: bool,
    /// Types of the numbers that expressions read: of scalars, and 64-bit ones for the addresses of tensors.
    pub scalars: Vec<&'static str>,
    /// The score modification.
    pub score_mod: Option<Function>,
    /// Its backward.
    pub score_mod_bwd: Option<Function>,
    /// The mask's predicate with its band. A launch then gets lists of the tiles that the mask cuts, and of those that
    /// it leaves whole.
    pub mask_mod: Option<Function>,
}

impl Common {
    /// Without expressions, which some kernels do not see.
    pub(crate) fn unmodified(&self) -> Common {
        Common { scalars: Vec::new(), score_mod: None, score_mod_bwd: None, mask_mod: None, ..self.clone() }
    }
}

/// A forward kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forward {
    #[serde(flatten)]
    pub common: Common,
    /// Whether query heads of a key head share a tile.
    pub pack_gqa: bool,
    /// If keys and values are in pages: rows of a page where the kernel is for pages as large as its tiles, and 1 where
    /// it reads pages of any size.
    pub page: Option<i64>,
    /// Rows of a tile of queries.
    pub tile_m: i64,
    /// Rows of a tile of keys.
    pub tile_n: i64,
    /// Whether probabilities stay in registers for the second product.
    pub p_in_registers: bool,
    /// Whether LSE is written.
    pub stats: bool,
    /// Whether a logit of each head joins the sum.
    pub sink: bool,
    /// Whether all scores of a row may be very low.
    pub low: bool,
}

/// The kernel before the backward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preprocess {
    #[serde(flatten)]
    pub common: Common,
    /// Rows of a tile.
    pub tile_m: i64,
    /// Head dims are rounded up to multiples of this.
    pub round: i64,
}

/// The backward kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backward {
    #[serde(flatten)]
    pub common: Common,
    /// Whether two runs agree bit for bit.
    pub deterministic: bool,
    #[serde(flatten)]
    pub tiling: BackwardTiling,
    /// Threads of a block.
    pub threads: i64,
}

/// How the backward kernel divides its work, in FlashAttention-4's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BackwardTiling {
    /// Rows of a tile of queries.
    pub tile_m: i64,
    /// Rows of a tile of keys.
    pub tile_n: i64,
    /// Tiles of queries that are on their way at a time.
    pub stages_q: i64,
    /// Tiles of dO that are on their way at a time.
    pub stages_do: i64,
    /// Tiles of P and dS.
    pub stages_pds: i64,
    /// Whether the products for P and dP are computed transposed.
    pub swap_sdp: bool,
    /// Whether those for dK and dV are.
    pub swap_dkv: bool,
    /// Whether that for dQ is.
    pub swap_dq: bool,
    /// Warp groups along the queries of P and dP.
    pub atoms_sdp: i64,
    /// Warp groups along the keys of dK and dV.
    pub atoms_dkv: i64,
    /// Warp groups along the queries of dQ.
    pub atoms_dq: i64,
    /// Whether one warp group alone computes dQ.
    pub dq_one_group: bool,
}

/// The kernel after the backward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Postprocess {
    /// Element type of the gradient.
    pub dtype: &'static str,
    /// Its head dim.
    pub head_dim: i64,
    /// Rows of a tile.
    pub tile_m: i64,
    /// Threads of a block.
    pub threads: i64,
    /// Warp groups along the rows.
    pub atoms: i64,
    /// Whether the sums are transposed.
    pub swap: bool,
    /// The head dim is rounded up to a multiple of this.
    pub round: i64,
    /// Whether sequences lie one after another.
    pub packed: bool,
    /// Whether a launch gets lengths.
    pub used: bool,
    /// Whether the gradients of the sinks are summed too.
    pub sink: bool,
}
