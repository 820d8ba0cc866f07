//! What a kernel does for tensors of one kind: made once for each, and kept in a table of the process.

use qkvault::RawReady;
use qkvault::exec::Number;
use qkvault::graph::{DType, Role, Valid};
use smallvec::SmallVec;

use super::context::{CallContext, CpuTensors};
use super::shim::{Shim, current_stream};
use super::spec::{Few, GivenTensor, Spec, Wanted, beside, dense};
use super::value::{TensorShape, dtype, number};
use crate::status::{CallFailure, QKV_ERROR_DEVICE};

/// What a call computes, with how its tensors begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallPass {
    /// O alone: Q, K, V.
    Alone,
    /// O and Stats: Q, K, V.
    Forward,
    /// dO, Q, K, V, O, Stats.
    Backward,
}

impl CallPass {
    pub(super) const fn roles(self) -> &'static [Role] {
        match self {
            CallPass::Alone | CallPass::Forward => &[Role::Q, Role::K, Role::V],
            CallPass::Backward => &[Role::DO, Role::Q, Role::K, Role::V, Role::O, Role::Stats],
        }
    }

    /// The outputs that a call always has.
    pub(super) const fn outputs(self) -> &'static [Role] {
        match self {
            CallPass::Alone => &[Role::O],
            CallPass::Forward => &[Role::O, Role::Stats],
            CallPass::Backward => &[Role::DQ, Role::DK, Role::DV],
        }
    }
}

/// Where a tensor of a launch comes from: a place among those given, or among the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Given(usize),
    Output(usize),
}

/// An output of a call.
#[derive(Clone, Debug)]
pub(super) struct Out {
    pub(super) role: Role,
    pub(super) dims: Few,
    pub(super) strides: Few,
    pub(super) dtype: i32,
    pub(super) bytes: u64,
}

/// A call on tensors of one kind.
#[derive(Debug)]
pub(super) struct TorchCall {
    pass: CallPass,
    spec: Box<str>,
    shapes: SmallVec<[TensorShape; 16]>,
    pub(super) attention: Valid,
    /// The tensors of a launch, each with its source and bytes of an element.
    pub(super) tensors: Vec<(Role, From, u64)>,
    /// The scalars of a launch, each with its place among the numbers; without one, the usual softmax scale.
    pub(super) scalars: Vec<(Role, Option<usize>, DType)>,
    pub(super) outputs: Vec<Out>,
    /// The plan; none on the CPU.
    pub(super) ready: Option<RawReady>,
    /// What is done on the CPU.
    pub(super) cpu: CpuTensors,
}

impl TorchCall {
    /// A number of a launch.
    pub(super) fn scalar(&self, numbers: &[f64], (at, dtype): (Option<usize>, DType)) -> Number {
        let value = at.map_or_else(|| f64::from(self.attention.default_scale()), |at| numbers[at]);
        match dtype {
            DType::I64 => Number::I64(value as i64),
            DType::I32 => Number::I32(value as i32),
            _ => Number::F32(value as f32),
        }
    }

    /// Whether it is the call for these.
    pub(super) fn is(&self, pass: CallPass, spec: &str, shapes: &[TensorShape]) -> bool {
        self.pass == pass && &*self.spec == spec && self.shapes[..] == *shapes
    }

    /// A new one, which loads its plan.
    pub(super) fn new(
        shim: &Shim,
        chosen: &CallContext,
        pass: CallPass,
        text: &str,
        shapes: &[TensorShape],
    ) -> Result<TorchCall, CallFailure> {
        let spec = Spec::read(text)?;
        let fixed = pass.roles();
        let expected = fixed.len() + spec.extra.len();
        if shapes.len() != expected {
            let text = format!("{} tensors came, and the specification has {expected}", shapes.len());
            return Err(CallFailure::argument(text));
        }
        let device = shapes[0].device;
        if let Some(other) = shapes.iter().position(|shape| shape.device != device) {
            let name = fixed.get(other).map_or_else(|| spec.extra[other - fixed.len()].into(), |role| role.name());
            let text = format!("{name} is on another device than {}; move all tensors to one GPU", fixed[0]);
            return Err(CallFailure::argument(text));
        }
        let types: Vec<DType> = shapes.iter().map(|shape| known(shim, shape)).collect::<Result<_, _>>()?;
        let given = |at: usize| GivenTensor { dtype: types[at], dims: shapes[at].dims(), strides: shapes[at].steps() };
        let attention = match pass {
            CallPass::Alone => spec.attention([given(0), given(1), given(2)], Wanted::O),
            CallPass::Forward => spec.attention([given(0), given(1), given(2)], Wanted::Stats),
            CallPass::Backward => spec.attention([given(1), given(2), given(3)], Wanted::Gradients(given(0))),
        }?;
        let mut call = TorchCall {
            pass,
            spec: text.into(),
            shapes: shapes.into(),
            attention,
            tensors: Vec::new(),
            scalars: Vec::new(),
            outputs: Vec::new(),
            ready: None,
            cpu: chosen.cpu,
        };
        call.arrange(shim, &spec, &types)?;
        let (kind, index) = device;
        if kind != cpu() {
            let stream = current_stream(index)?;
            // SAFETY: PyTorch's current stream on this GPU.
            let ready = unsafe { chosen.runtime.prepare(&call.attention, index, stream) }?;
            chosen.tell(&ready);
            let order = |role: Role| ready.order().tensors().iter().position(|binding| binding.role == role);
            call.tensors.sort_by_key(|(role, ..)| order(*role).unwrap_or(usize::MAX));
            call.tensors.truncate(ready.order().tensors().len());
            let order = |role: Role| ready.order().scalars().iter().position(|binding| binding.role == role);
            call.scalars.sort_by_key(|(role, ..)| order(*role).unwrap_or(usize::MAX));
            call.scalars.truncate(ready.order().scalars().len());
            call.ready = Some(ready);
        } else if chosen.cpu == CpuTensors::Refused {
            let text = "the tensors are on the CPU, where cuDNN computes nothing; move them to a GPU, or allow the slow \
                        oracle for tests with qkvault.torch.configure(cpu=True)";
            return Err(CallFailure::new(QKV_ERROR_DEVICE, text));
        }
        Ok(call)
    }

    /// Finds the source of every operand.
    fn arrange(&mut self, shim: &Shim, spec: &Spec<'_>, types: &[DType]) -> Result<(), CallFailure> {
        let fixed = self.pass.roles();
        let facts = self.attention.operand_facts();
        let mut names: Vec<(Role, usize)> = fixed.iter().copied().zip(0..).collect();
        let mut outputs: Vec<Role> = self.pass.outputs().to_vec();
        for (at, name) in spec.extra.iter().enumerate() {
            // One that this pass does not have: offsets of gradients in a forward, sinks in most backwards.
            let known = name.parse::<Role>().ok();
            if known.is_some_and(|role| facts.iter().all(|fact| fact.role != role)) {
                continue;
            }
            let roles = self.attention.named_roles(name)?;
            names.extend(roles.iter().map(|role| (*role, fixed.len() + at)));
            let gradient = |role: &Role| match role {
                Role::Sink => Some(Role::DSink),
                Role::ScoreTensor(n) => Some(Role::DScoreTensor(*n)),
                _ => None,
            };
            let gradients = roles.iter().filter_map(gradient);
            outputs.extend(gradients.filter(|role| facts.iter().any(|fact| fact.role == *role)));
        }
        let mut numbers = Vec::new();
        for (at, name) in spec.numbers.iter().enumerate() {
            // Origins that nothing counts from.
            let known = name.parse::<Role>().ok();
            if known.is_some_and(|role| facts.iter().all(|fact| fact.role != role)) {
                continue;
            }
            numbers.extend(self.attention.named_roles(name)?.into_iter().map(|role| (role, at)));
        }
        for fact in &facts {
            let named = || fact.name.map_or_else(|| fact.role.name(), Into::into);
            if fact.scalar {
                let at = numbers.iter().find(|(role, _)| *role == fact.role).map(|(_, at)| *at);
                if at.is_none() && fact.role != Role::Scale {
                    return Err(CallFailure::argument(format!("the specification names no number for {}", named())));
                }
                self.scalars.push((fact.role, at, fact.dtype));
            } else if fact.output {
                let place = outputs.iter().position(|role| *role == fact.role);
                let place = place
                    .ok_or_else(|| CallFailure::argument(format!("the output {} has no place in a call", named())))?;
                self.tensors.push((fact.role, From::Output(place), fact.dtype.size() as u64));
            } else if let Some((_, at)) = names.iter().find(|(role, _)| *role == fact.role) {
                let (shape, came) = (&self.shapes[*at], types[*at]);
                let elements: i64 = fact.dims.iter().product();
                let whole = *at < fixed.len() || (shape.is_contiguous() && shape.elements() >= elements);
                if came != fact.dtype || !whole {
                    let (dims, steps) = (shape.dims(), shape.steps());
                    let text = format!(
                        "{} is {came} {dims:?} with strides {steps:?}; it must be {} {:?} without gaps",
                        named(),
                        fact.dtype,
                        fact.dims
                    );
                    return Err(CallFailure::argument(text));
                }
                self.tensors.push((fact.role, From::Given(*at), fact.dtype.size() as u64));
            } else if !qkvault::exec::raw::constant_values(&self.attention).iter().any(|(role, _)| *role == fact.role) {
                return Err(CallFailure::argument(format!("the specification names no tensor for {}", named())));
            }
        }
        for role in outputs {
            let fact = facts.iter().find(|fact| fact.role == role);
            let fact = fact.ok_or_else(|| CallFailure::argument(format!("the attention has no output {role}")))?;
            let shape = |of: Role| names.iter().find(|(own, _)| *own == of).map(|(_, at)| &self.shapes[*at]);
            let source = match role {
                Role::O | Role::Stats | Role::DQ => shape(Role::Q),
                Role::DK => shape(Role::K),
                Role::DV => shape(Role::V),
                Role::DSink => shape(Role::Sink),
                Role::DScoreTensor(n) => shape(Role::ScoreTensor(n)),
                _ => None,
            };
            let source =
                source.ok_or_else(|| CallFailure::argument(format!("the output {role} has no place in a call")))?;
            let dims = source.dims();
            let (dims, strides) = match role {
                Role::Stats => (Few::from_slice(&dims[..dims.len() - 1]), dense(&dims[..dims.len() - 1])),
                Role::DSink | Role::DScoreTensor(_) => (Few::from_slice(dims), dense(dims)),
                _ => beside(dims, source.steps(), fact.dims[3]),
            };
            let unknown = || CallFailure::argument(format!("PyTorch has no element type {}", fact.dtype));
            let dtype = number(shim, fact.dtype).ok_or_else(unknown)?;
            self.outputs.push(Out { role, dims, strides, dtype, bytes: fact.bytes });
        }
        Ok(())
    }
}

fn known(shim: &Shim, shape: &TensorShape) -> Result<DType, CallFailure> {
    let unknown = || {
        let text = "an element type of a tensor is none of float16, bfloat16, float32, int32, int64 and uint8";
        CallFailure::argument(text)
    };
    dtype(shim, shape.dtype).ok_or_else(unknown)
}

/// PyTorch's number of the CPU as a kind of device.
const fn cpu() -> i32 {
    0
}
