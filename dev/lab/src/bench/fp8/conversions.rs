//! What a training's forward in 8 bits needs beside the attention: conversions of Q, K and V to 8 bits with delayed
//! scaling, and of O back.

use std::sync::Arc;

use qkvault_cli::memory::Recorded;
use qkvault_cli::turns::time;
use qkvault_compile::{OnMiss, Planner};
use qkvault_exec::cudarc::driver::{CudaSlice, CudaStream};
use qkvault_exec::{Args, LoadedPlan, Session};
use qkvault_graph::{Conversion, ConversionKind, DType, Role, Tensor, Valid};

/// Conversions of a tensor each in a recorded graph.
const CALLS: usize = 20;

/// A conversion and its operands.
struct Converted {
    plan: LoadedPlan,
    wide: CudaSlice<u8>,
    narrow: CudaSlice<u8>,
    numbers: [CudaSlice<u8>; 3],
    narrows: bool,
}

impl Converted {
    fn new(
        (session, planner): (&Session, &Planner),
        stream: &Arc<CudaStream>,
        tensor: Tensor,
        narrows: bool,
    ) -> anyhow::Result<Converted> {
        let wide = Tensor { dtype: DType::BF16, ..tensor };
        let of = match narrows {
            true => Conversion::to(DType::E4M3, wide, ConversionKind::Delayed),
            false => Conversion::from(Tensor { dtype: DType::E4M3, ..tensor }, DType::BF16, ConversionKind::Dequantize),
        };
        let plan = session.prepare_conversion(planner, &of.validate()?, OnMiss::Compile)?;
        let elements = tensor.dims.iter().product::<i64>().unsigned_abs() as usize;
        // Numbers of many sizes: bf16 from 2^-120 to 2^120, and all of e4m3.
        let filled = |bytes: usize| {
            let pattern: Vec<u8> = (0..bytes).map(|at| (at * 37 % 120) as u8).collect();
            stream.clone_htod(&pattern)
        };
        let one = || stream.clone_htod(&1.0_f32.to_ne_bytes());
        Ok(Converted {
            plan,
            wide: filled(2 * elements)?,
            narrow: filled(elements)?,
            numbers: [one()?, one()?, one()?],
            narrows,
        })
    }

    fn args(&mut self) -> Args<'_> {
        let Converted { wide, narrow, numbers: [scale, descale, amax], narrows, .. } = self;
        if *narrows {
            let args = Args::new().tensor(Role::Wide, &*wide).tensor_mut(Role::Narrow, narrow);
            let args = args.tensor(Role::NarrowScale, &*scale).tensor_mut(Role::NarrowDescale, descale);
            args.tensor_mut(Role::NarrowAmax, amax)
        } else {
            let args = Args::new().tensor(Role::Narrow, &*narrow).tensor_mut(Role::Wide, wide);
            args.tensor(Role::NarrowDescale, &*descale)
        }
    }
}

/// Milliseconds of the four conversions of a forward, one after the other in a captured graph.
pub(super) fn measure(
    session: &Session,
    planner: &Planner,
    forward: &Valid,
    stream: &Arc<CudaStream>,
) -> anyhow::Result<f64> {
    let from = (session, planner);
    let mut all = [
        Converted::new(from, stream, forward.q, true)?,
        Converted::new(from, stream, forward.k, true)?,
        Converted::new(from, stream, forward.v, true)?,
        Converted::new(from, stream, forward.o, false)?,
    ];
    let mut bound = Vec::new();
    for one in &mut all {
        let plan = one.plan.clone();
        bound.push(plan.bind(one.args(), stream).map_err(|error| anyhow::anyhow!("{error}"))?);
    }
    let mut graph = Recorded::new(&mut bound, stream, 4 * CALLS)?;
    time(stream, || graph.launch())?;
    let mut us: Vec<f64> = (0..5).map(|_| time(stream, || graph.launch())).collect::<Result<_, _>>()?;
    us.sort_by(f64::total_cmp);
    Ok(us[2] / CALLS as f64 / 1e3)
}
