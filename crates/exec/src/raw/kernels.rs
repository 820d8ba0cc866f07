//! Loading a plan's kernels onto the GPU before its first launch.
//!
//! The driver loads a kernel when it is first needed. For cuDNN's kernels that is the first launch of their plan, which
//! then takes about a millisecond longer. A launch that is captured and never run tells which kernels they are.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use qkvault_sys::ExecutionPlan;

use crate::driver::open;
use crate::raw::host_scalars::HostScalars;
use crate::raw::launch::DeviceBuffer;
use crate::raw::load::{LoadedCode, RawPlan};
use crate::raw::primary::checked;
use crate::raw::relaxed::{RELAXED, RelaxedCaptures};

type StreamCreate = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
type BeginCapture = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type EndCapture = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
type GetNodes = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut usize) -> c_int;
type NodeType = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
type KernelParams = unsafe extern "C" fn(*mut c_void, *mut KernelNode) -> c_int;
type KernelFunction = unsafe extern "C" fn(*mut *mut c_void, *mut c_void) -> c_int;
type LoadFunction = unsafe extern "C" fn(*mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `CUDA_KERNEL_NODE_PARAMS_v2` of the driver API.
#[repr(C)]
struct KernelNode {
    /// Null if `kernel` is set.
    function: *mut c_void,
    /// Grid, block, shared memory.
    shape: [c_uint; 7],
    arguments: [*mut c_void; 2],
    kernel: *mut c_void,
    context: *mut c_void,
}

/// `CU_GRAPH_NODE_TYPE_KERNEL`.
const KERNEL: c_int = 0;

/// The functions of the driver that this module calls.
struct GraphFunctions {
    create: StreamCreate,
    destroy: Destroy,
    begin: BeginCapture,
    end: EndCapture,
    nodes: GetNodes,
    node_type: NodeType,
    params: KernelParams,
    function: KernelFunction,
    load: LoadFunction,
    destroy_graph: Destroy,
}

fn functions() -> Option<&'static GraphFunctions> {
    static FUNCTIONS: OnceLock<Option<GraphFunctions>> = OnceLock::new();
    let find = || {
        let driver = open().ok()?;
        // SAFETY: every driver since CUDA 12.4 has these functions with these signatures.
        unsafe {
            Some(GraphFunctions {
                create: *driver.get::<StreamCreate>("cuStreamCreate").ok()?,
                destroy: *driver.get::<Destroy>("cuStreamDestroy_v2").ok()?,
                begin: *driver.get::<BeginCapture>("cuStreamBeginCapture_v2").ok()?,
                end: *driver.get::<EndCapture>("cuStreamEndCapture").ok()?,
                nodes: *driver.get::<GetNodes>("cuGraphGetNodes").ok()?,
                node_type: *driver.get::<NodeType>("cuGraphNodeGetType").ok()?,
                params: *driver.get::<KernelParams>("cuGraphKernelNodeGetParams_v2").ok()?,
                function: *driver.get::<KernelFunction>("cuKernelGetFunction").ok()?,
                load: *driver.get::<LoadFunction>("cuFuncLoad").ok()?,
                destroy_graph: *driver.get::<Destroy>("cuGraphDestroy").ok()?,
            })
        }
    };
    FUNCTIONS.get_or_init(find).as_ref()
}

/// `CU_STREAM_NON_BLOCKING` of the driver API.
const NON_BLOCKING: c_uint = 1;

/// An address that no memory has and every alignment divides. Nothing follows it.
const NOWHERE: u64 = 1 << 40;

/// A stream or a graph, destroyed when dropped.
struct Destroyed(Destroy, *mut c_void);

impl Drop for Destroyed {
    fn drop(&mut self) {
        // SAFETY: this value owns it. Nothing is queued on the stream, and the graph is not launched.
        unsafe { (self.0)(self.1) };
    }
}

impl RawPlan {
    /// Loads the plan's kernels now, so that its first launch takes no longer than later ones. Launches nothing.
    ///
    /// A plan works without it. Call it on a thread that captures no stream.
    ///
    /// # Errors
    ///
    /// What the driver or cuDNN could not do. The plan can be launched all the same.
    pub fn load_kernels(&self) -> Result<(), String> {
        let plan = match self.code() {
            LoadedCode::Cudnn(plan, _) => plan,
            // Loading the plan has put them onto the GPU.
            LoadedCode::Kernels(_) => return Ok(()),
        };
        let functions = functions().ok_or("the driver lacks functions of CUDA 12.4")?;
        let _relaxed = RelaxedCaptures::enter();
        let _entered = self.session().enter().map_err(|error| error.to_string())?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` is writable, and the session's context is current.
        checked("create a stream", unsafe { (functions.create)(&raw mut stream, NON_BLOCKING) })?;
        let stream = Destroyed(functions.destroy, stream);
        let graph = self.captured(plan, functions, stream.1)?;
        // SAFETY: the graph is valid, and its kernels are those of the plan, which stays loaded.
        unsafe { load(functions, graph.1) }
    }

    /// A launch over addresses of no memory, as a graph.
    fn captured(
        &self,
        plan: &ExecutionPlan,
        functions: &GraphFunctions,
        stream: *mut c_void,
    ) -> Result<Destroyed, String> {
        let table = self.table();
        let numbers = HostScalars::new(table.numbers().collect());
        let tensors: Vec<DeviceBuffer> =
            table.tensors().iter().map(|t| DeviceBuffer { address: NOWHERE, bytes: t.bytes }).collect();
        let told = |error: qkvault_sys::Error| error.to_string();
        // SAFETY: nothing follows the addresses, because the launch is captured only; `numbers` outlives the capture.
        let pack = unsafe { table.pack(&self.session().cudnn_of_plan().library, &numbers, &tensors, NOWHERE) }
            .map_err(told)?;
        // SAFETY: the stream is of the session's GPU, whose context is current, and outlives the lease.
        let mut lease = unsafe { self.session().cudnn_of_plan().pool.on(stream) }.map_err(told)?;
        // Relaxed: the driver may allocate for the kernels.
        // SAFETY: the stream is of the current context and not captured yet.
        checked("begin a capture", unsafe { (functions.begin)(stream, RELAXED) })?;
        // SAFETY: as above. The handle is on the stream, so the launch becomes a part of the graph.
        let queued = unsafe { plan.execute(lease.handle(), &pack) };
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture of this stream began above.
        let ended = unsafe { (functions.end)(stream, &raw mut graph) };
        checked("end a capture", ended)?;
        let graph = Destroyed(functions.destroy_graph, graph);
        queued.map_err(told).map(|()| graph)
    }
}

/// Loads the kernels of a graph.
///
/// # Safety
///
/// The graph must be valid, and its kernels loaded as libraries.
unsafe fn load(functions: &GraphFunctions, graph: *mut c_void) -> Result<(), String> {
    let mut count = 0;
    // SAFETY: without room for nodes the driver counts them.
    checked("count nodes", unsafe { (functions.nodes)(graph, std::ptr::null_mut(), &raw mut count) })?;
    let mut nodes = vec![std::ptr::null_mut(); count];
    // SAFETY: there is room for `count` nodes.
    checked("list nodes", unsafe { (functions.nodes)(graph, nodes.as_mut_ptr(), &raw mut count) })?;
    for node in nodes {
        let mut kind = 0;
        // SAFETY: a node of the graph.
        checked("tell the type of a node", unsafe { (functions.node_type)(node, &raw mut kind) })?;
        if kind != KERNEL {
            continue;
        }
        // SAFETY: zeros are a valid value of numbers and pointers.
        let mut params: KernelNode = unsafe { std::mem::zeroed() };
        // SAFETY: a kernel node, and room for its parameters.
        checked("tell the kernel of a node", unsafe { (functions.params)(node, &raw mut params) })?;
        let mut function = params.function;
        if function.is_null() {
            // SAFETY: a node without a function has a kernel.
            let found = unsafe { (functions.function)(&raw mut function, params.kernel) };
            checked("find a kernel in this context", found)?;
        }
        // SAFETY: a function of the current context.
        checked("load a kernel", unsafe { (functions.load)(function) })?;
    }
    Ok(())
}
