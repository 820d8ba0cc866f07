//! Errors of binding, of launching, and of setting scalars.

use qkvault_graph::{DType, PlanKey, Role};
use qkvault_sys::Error;

use crate::bind_error::{BindError, BindErrors};

/// Why a plan was not bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawBindFailure {
    /// The bindings have errors.
    #[error(transparent)]
    Wrong(#[from] BindErrors),
    /// cuDNN refuses the variant pack.
    #[error(
        "cuDNN refuses the bindings of the plan of '{what}': {source}; report this with the output of `qkvault doctor`"
    )]
    Cudnn {
        /// What the plan computes.
        what: String,
        /// The error of cuDNN.
        source: Error,
    },
}

/// Why a scalar kept its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScalarError {
    /// The plan does not have this scalar.
    #[error("the plan has no scalar {role}; it has {}", join(scalars))]
    NoScalar {
        /// The role.
        role: Role,
        /// The scalars that the plan has.
        scalars: Vec<Role>,
    },
    /// The description has no scalar of this name.
    #[error(transparent)]
    NoSuchName(Box<BindError>),
    /// Origins are out of range, or break the promise that every query sees a key.
    #[error(transparent)]
    Origins(Box<BindError>),
    /// The scalar has another type.
    #[error("scalar {role} is {needed}, and {given} was given; convert the value")]
    WrongDType {
        /// The role.
        role: Role,
        /// The type that the plan needs.
        needed: DType,
        /// The type of the value.
        given: DType,
    },
}

fn join(roles: &[Role]) -> String {
    if roles.is_empty() {
        return "none".to_owned();
    }
    roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a launch was not queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// cuDNN refused the launch.
    #[error("plan {key} ({what}) was not launched: {source}; an earlier kernel on this GPU can be the cause")]
    Refused {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// The error of cuDNN.
        source: Box<Error>,
    },
    /// The driver refused a step before or after the launch.
    #[error(
        "the launch could not {step}: {detail}; CUDA reports errors late, so an earlier kernel or drop can be the cause"
    )]
    Driver {
        /// The step that failed.
        step: &'static str,
        /// The error of the driver.
        detail: String,
    },
    /// The arguments have errors.
    #[error(transparent)]
    Arguments(#[from] BindErrors),
    /// The arguments of a raw launch are too few or too many.
    #[error(
        "the plan of '{what}' takes {} tensors and {} scalars in the order of RawPlan::tensors and RawPlan::scalars, \
         and {} and {} were given",
        needed.0, needed.1, given.0, given.1
    )]
    Count {
        /// What the plan computes.
        what: String,
        /// Tensors and scalars that were given.
        given: (usize, usize),
        /// Tensors and scalars that the plan takes.
        needed: (usize, usize),
    },
    /// The table has no plan with this id.
    #[error("the table has no plan with the id {id}; give an id of PlanTable::load or PlanTable::find of this process")]
    NoSuchPlan {
        /// The id.
        id: u32,
    },
    /// The session could not enter the context of its GPU.
    #[error("the CUDA context of the plan's GPU could not be made current: {detail}")]
    Context {
        /// The error of the driver.
        detail: String,
    },
    /// The scratch memory could not be allocated.
    #[error(
        "{bytes} bytes of scratch memory for the launch could not be allocated: {detail}; free memory, or compile with \
         a workspace limit"
    )]
    Workspace {
        /// The size in bytes.
        bytes: u64,
        /// The error of the driver.
        detail: String,
    },
    /// A captured launch was given no scratch memory.
    #[error(
        "the launch needs {bytes} bytes of scratch memory that the captured graph keeps using; allocate them with \
         Workspace::allocate before the capture, give them by Args::workspace, and keep them as long as the graph"
    )]
    NoWorkspace {
        /// The size in bytes.
        bytes: u64,
    },
    /// The stream is in another context than the plan.
    #[error(
        "the stream is in a context of GPU {stream} and the plan in one of GPU {plan}; use a stream of \
         Session::device()"
    )]
    OtherContext {
        /// Ordinal of the stream's GPU.
        stream: usize,
        /// Ordinal of the plan's GPU.
        plan: usize,
    },
    /// The stream is being captured, and a safe launch cannot know how long the graph will use its operands.
    #[error(
        "the stream is being captured, and the graph would use the operands after their borrow ends; use \
         Bound::capture, which keeps them, or the unsafe `launch_captured`, for which you keep operands, plan and \
         workspace as long as the graph"
    )]
    Captured,
    /// The stream is the per-thread default stream.
    #[error(
        "the per-thread default stream is another stream in each thread, so no launch can be ordered with one that \
         another thread made there; use CudaContext::new_stream or default_stream"
    )]
    PerThreadStream,
}
