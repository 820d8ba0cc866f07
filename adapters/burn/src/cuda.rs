//! Launches beside burn's CUDA backend: its memory, its context, a stream of our own.

use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_backend::{DType, TensorMetadata as _, read_sync};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, FloatElement, IntElement};
use burn_tensor::ops::FloatTensorOps as _;
use cubecl::client::ComputeClient;
use cubecl::cuda::CudaRuntime;
use cubecl::server::Handle;
use qkvault::exec::cudarc::driver::{result, sys};
use qkvault::exec::raw::{DeviceBuffer, RawArgs};
use qkvault::exec::{Number, SCRATCH_ALIGNMENT};
use qkvault::graph::{self, Role, Valid};
use qkvault::{RawReady, RawRuntime};

pub use crate::lane::{Ordering, set_ordering};

use crate::Error;
use crate::backend::{AttentionBackend, Compute};
use crate::known::Entry;
use crate::lane::{Lane, driver, ordering};
use crate::options::Plain;
use crate::run::{self, Call, Out, Run};
use crate::tensor::{Lie, Order, burn_dtype};

/// burn's CUDA backend without fusion, whatever other features of burn are on.
pub type Cuda<F = f32, I = i32> = CubeBackend<CudaRuntime, F, I, u8>;

/// All bits set: NaN in every float format.
const POISON: u8 = 0xff;

/// What kernels need an address to be a multiple of, in bytes.
const ALIGNED: u64 = 16;

impl<F: FloatElement, I: IntElement, T: BoolElement> AttentionBackend for CubeBackend<CudaRuntime, F, I, T> {
    fn attend(call: Call<Self>) -> Result<FloatTensor<Self>, Error> {
        Ok(run::forward(call, None)?.o)
    }

    fn describe(call: Call<Self>) -> Result<Vec<Valid>, Error> {
        run::describe(call, None)
    }
}

impl<F: FloatElement, I: IntElement, T: BoolElement> Compute for CubeBackend<CudaRuntime, F, I, T> {
    /// Where gaps do not matter it is one of the two orders without gaps, so that plans are shared.
    fn lie(tensor: &FloatTensor<Self>) -> Lie {
        let dims = tensor.shape().to_vec();
        let own = Lie::new(&dims, tensor.meta.strides());
        let mut usual = [Order::HeadsOutside, Order::RowsOutside].map(|order| Lie::made(&dims, order)).into_iter();
        usual.find(|lie| lie.is_same(&own)).unwrap_or(own)
    }

    fn readable(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        let size = i64::try_from(tensor.dtype.size()).unwrap_or(i64::MAX);
        if Self::lie(&tensor).is_readable(size) { aligned(tensor) } else { aligned(into_contiguous(tensor)) }
    }

    fn ordered(tensor: FloatTensor<Self>, order: Order) -> FloatTensor<Self> {
        let dims = tensor.shape().to_vec();
        if Self::lie(&tensor).is_same(&Lie::made(&dims, order)) {
            return aligned(tensor);
        }
        match order == Order::RowsOutside && dims.len() == 4 {
            true => Self::float_swap_dims(aligned(into_contiguous(Self::float_swap_dims(tensor, 1, 2))), 1, 2),
            false => aligned(into_contiguous(tensor)),
        }
    }

    fn whole(tensor: IntTensor<Self>) -> IntTensor<Self> {
        aligned(into_contiguous(tensor))
    }

    fn prepare(entry: &Entry, plain: &Plain, beside: &FloatTensor<Self>) -> Result<(), Error> {
        ready(entry, plain, beside.device.index).map(drop)
    }

    fn compute(run: Run<'_, Self>) -> Result<Vec<FloatTensor<Self>>, Error> {
        let Some((_, beside)) = run.inputs.first() else {
            return Err(Error::Tensor("the call has no tensors".to_owned()));
        };
        let (client, gpu) = (beside.client.clone(), beside.device.index);
        let (ready, lane) = (ready(run.entry, run.plain, gpu)?, Lane::of(gpu)?);
        let mut placed: Vec<(Role, Handle, u64)> = Vec::new();
        let mask = run.mask.iter().map(|(role, own)| (*role, own));
        for (role, tensor) in run.inputs.iter().map(|(role, own)| (*role, own)).chain(mask) {
            placed.push((role, tensor.handle.clone(), bytes(Self::lie(tensor).span(), tensor.dtype)));
        }
        for binding in ready.order().tensors().iter().filter(|binding| binding.role.is_followed()) {
            let Some(sequences) = run.sequences else { continue };
            let upload = |numbers| upload(&client, binding, numbers);
            let handle = sequences.uploaded(gpu, binding.role, &run.entry.valid, upload)?;
            let size = handle.size_in_used();
            placed.push((binding.role, handle, size));
        }
        let mut outputs = Vec::new();
        let first = placed.len();
        for out in &run.outputs {
            let dtype = burn_dtype(out.dtype)?;
            let room = bytes(out.lie.span(), dtype);
            let handle = client.empty(usize::try_from(room).unwrap_or(usize::MAX));
            placed.push((out.role, handle.clone(), room));
            outputs.push(tensor::<Self>(beside, out, handle, dtype));
        }
        let room = ready.plan().workspace();
        let scratch = (room > 0).then(|| {
            let room = room.saturating_add(SCRATCH_ALIGNMENT);
            client.empty(usize::try_from(room).unwrap_or(usize::MAX))
        });
        let numbers = ready.order().scalars().iter().map(|binding| {
            let of = run.entry.scalars.iter().find(|(role, ..)| *role == binding.role);
            of.map(|(.., scalar)| run.number(*scalar)).ok_or_else(|| lacking(binding.role))
        });
        let launch = Launch {
            client: &client,
            ready: &ready,
            lane: &lane,
            placed: &placed,
            poisoned: if run.plain.poison { first..placed.len() } else { 0..0 },
            scratch: scratch.as_ref(),
            scalars: numbers.collect::<Result<Vec<Number>, Error>>()?,
        };
        // On burn's thread for this GPU: nothing else is queued meanwhile, and addresses take one message in all.
        client.exclusive(|| launch.queue()).map_err(|error| Error::Device(error.to_string()))??;
        Ok(outputs)
    }
}

/// A launch with the memory that it needs, which the handles keep.
struct Launch<'a> {
    client: &'a ComputeClient<CudaRuntime>,
    ready: &'a RawReady,
    lane: &'a Lane,
    /// Operands by role, with their bytes.
    placed: &'a [(Role, Handle, u64)],
    /// Which of them are filled with NaN first.
    poisoned: std::ops::Range<usize>,
    scratch: Option<&'a Handle>,
    scalars: Vec<Number>,
}

impl Launch<'_> {
    fn queue(&self) -> Result<(), Error> {
        let address = |handle: &Handle| {
            let found = self.client.get_resource(handle.clone());
            found.map(|own| own.resource().ptr).map_err(|error| Error::Device(error.to_string()))
        };
        let mut buffers = Vec::with_capacity(self.placed.len());
        for (_, handle, bytes) in self.placed {
            buffers.push(DeviceBuffer { address: address(handle)?, bytes: *bytes });
        }
        let mut workspace = DeviceBuffer::default();
        if let Some(scratch) = self.scratch {
            let bytes = self.ready.plan().workspace();
            workspace = DeviceBuffer { address: address(scratch)?.next_multiple_of(SCRATCH_ALIGNMENT), bytes };
        }
        let tensors = self.ready.order().tensors().iter().map(|binding| {
            let at = self.placed.iter().position(|(role, ..)| *role == binding.role);
            at.map(|at| buffers[at]).ok_or_else(|| lacking(binding.role))
        });
        let tensors = tensors.collect::<Result<Vec<DeviceBuffer>, Error>>()?;
        let args = RawArgs { tensors: &tensors, scalars: &self.scalars, workspace, interleaved: &[] };
        let wait = || read_sync(self.client.sync()).map_err(|error| Error::Device(error.to_string()));
        let stream = self.lane.stream();
        self.lane.launch(ordering(), wait, || {
            for buffer in &buffers[self.poisoned.clone()] {
                let length = usize::try_from(buffer.bytes).unwrap_or(0);
                let cu_stream = stream.cast::<sys::CUstream_st>();
                // SAFETY: the whole of new memory, whose handle is kept until later work of the context waits for this.
                unsafe { result::memset_d8_async(buffer.address, POISON, length, cu_stream) }
                    .map_err(|error| driver("an output could not be filled", error))?;
            }
            // SAFETY: the addresses are those of burn's tensors, which lie as the description says. Their handles are
            // kept until later work of the context waits for this, so that burn gives their memory to nobody before;
            // scratch memory is this launch's own; lengths and offsets were checked on the host.
            unsafe { self.ready.launch_with(&args, stream) }.map_err(Error::from)
        })
    }
}

fn lacking(role: Role) -> Error {
    Error::Tensor(format!("the plan reads {role}, which the call has not"))
}

/// A new tensor over the memory of an output.
fn tensor<B>(beside: &CubeTensor<CudaRuntime>, out: &Out, handle: Handle, dtype: DType) -> CubeTensor<CudaRuntime>
where
    B: burn_tensor::backend::Backend<FloatTensorPrimitive = CubeTensor<CudaRuntime>>,
{
    let (client, device) = (beside.client.clone(), beside.device.clone());
    match (&out.dims[..], out.lie.order()) {
        (&[b, h, s, d], Order::RowsOutside) => {
            let made = CubeTensor::new_contiguous(client, device, [b, s, h, d].into(), handle, dtype);
            B::float_swap_dims(made, 1, 2)
        }
        _ => CubeTensor::new_contiguous(client, device, out.dims.clone().into(), handle, dtype),
    }
}

/// A tensor whose address is a multiple of 16 bytes: itself, or a copy.
fn aligned(tensor: CubeTensor<CudaRuntime>) -> CubeTensor<CudaRuntime> {
    match tensor.handle.offset_start.unwrap_or(0).is_multiple_of(ALIGNED) {
        true => tensor,
        false => tensor.copy(),
    }
}

/// Bytes of so many elements. Kernels read 16-bit elements in pairs, and allocations end at whole words.
fn bytes(elements: i64, dtype: DType) -> u64 {
    (u64::try_from(elements).unwrap_or(0) * dtype.size() as u64).next_multiple_of(4)
}

/// Numbers that kernels follow, in the plan's own type.
fn upload(client: &ComputeClient<CudaRuntime>, of: &graph::Binding, numbers: Vec<i64>) -> Result<Handle, Error> {
    let mut bytes = Vec::with_capacity(8 * numbers.len());
    for n in numbers {
        if of.dtype == graph::DType::I64 {
            bytes.extend(n.to_ne_bytes());
        } else {
            let small = i32::try_from(n).map_err(|_| Error::Tensor(format!("{}: {n} needs 64 bits", of.role)))?;
            bytes.extend(small.to_ne_bytes());
        }
    }
    Ok(client.create_from_slice(&bytes))
}

/// The plan of a description on a GPU.
fn ready(entry: &Entry, plain: &Plain, gpu: usize) -> Result<RawReady, Error> {
    let gpu = i32::try_from(gpu).unwrap_or(i32::MAX);
    // SAFETY: null is the default stream.
    Ok(unsafe { runtime(plain)?.prepare(&entry.valid, gpu, std::ptr::null_mut()) }?)
}

/// Where plans come from if the options do not say it: the user's vault.
fn runtime(plain: &Plain) -> Result<RawRuntime, Error> {
    static USUAL: std::sync::OnceLock<RawRuntime> = std::sync::OnceLock::new();
    if let Some(own) = &plain.runtime {
        return Ok(own.clone());
    }
    match USUAL.get() {
        Some(usual) => Ok(usual.clone()),
        None => {
            let opened = qkvault::Runtime::options().open_raw()?;
            Ok(USUAL.get_or_init(|| opened).clone())
        }
    }
}
