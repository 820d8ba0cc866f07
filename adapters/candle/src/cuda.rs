//! Launches on candle's own stream, with memory of candle's allocator.

use std::ffi::c_void;

use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop, result};
use candle_core::cuda_backend::{CudaStorage, CudaStorageSlice};
use candle_core::{CpuStorage, CudaDevice, DType, Device, InplaceOp1, Layout, Storage, Tensor};
use half::{bf16, f16};
use qkvault::RawReady;
use qkvault::exec::raw::{DeviceBuffer, RawArgs};
use qkvault::exec::{Number, SCRATCH_ALIGNMENT};
use qkvault::graph;
use smallvec::SmallVec;

use crate::Error;
use crate::run::{Made, Run, runtime};
use crate::tensor::{candle_dtype, span};

/// All bits set: NaN in every float format.
const POISON: u8 = 0xff;

/// Queues the launch of a run on candle's stream.
pub(crate) fn launch(run: &Run<'_>, device: &CudaDevice) -> candle_core::Result<Vec<Made>> {
    let stream = device.cuda_stream();
    let raw = stream.cu_stream().cast::<c_void>();
    let gpu = i32::try_from(stream.context().ordinal()).unwrap_or(i32::MAX);
    let ready = run.entry.ready(gpu, || {
        // SAFETY: candle's stream on this GPU, which the device keeps alive.
        Ok(unsafe { runtime(run.options)?.prepare(&run.entry.valid, gpu, raw) }?)
    })?;
    let mut outputs = run
        .outputs
        .iter()
        .map(|out| Memory::new(device, candle_dtype(out.dtype)?, out.shape.elem_count(), run.options.poison))
        .collect::<candle_core::Result<Vec<Memory>>>()?;
    let followed = followed(run, &ready, device)?;
    let held: Vec<_> = run
        .inputs
        .iter()
        .copied()
        .chain(followed.iter().map(|(role, tensor)| (*role, tensor)))
        .map(|(role, tensor)| (role, tensor, tensor.storage_and_layout()))
        .collect();
    let bytes = usize::try_from(ready.plan().workspace()).unwrap_or(usize::MAX);
    let mut scratch = match bytes {
        0 => None,
        // SAFETY: scratch memory, which the kernels write before they read it.
        _ => Some(unsafe { device.alloc::<u8>(bytes + SCRATCH_ALIGNMENT as usize) }?),
    };
    // Guards of cudarc's, which record that this stream used the memory when they are dropped.
    let mut guards: Vec<SyncOnDrop<'_>> = Vec::new();
    let mut placed: SmallVec<[(graph::Role, DeviceBuffer); 16]> = SmallVec::new();
    for (role, tensor, (storage, layout)) in &held {
        let (buffer, guard) = address(storage, layout, tensor, &stream)?;
        placed.push((*role, buffer));
        guards.push(guard);
    }
    for (out, memory) in run.outputs.iter().zip(&mut outputs) {
        let (buffer, guard) = memory.address(&stream);
        placed.push((out.role, buffer));
        guards.push(guard);
    }
    let mut workspace = DeviceBuffer::default();
    if let Some(scratch) = &mut scratch {
        let (address, guard) = scratch.device_ptr_mut(&stream);
        workspace = DeviceBuffer { address: address.next_multiple_of(SCRATCH_ALIGNMENT), bytes: bytes as u64 };
        guards.push(guard);
    }
    let tensors = ready.order().tensors().iter().map(|binding| {
        let found = placed.iter().find(|(role, _)| *role == binding.role).map(|(_, buffer)| *buffer);
        found.ok_or_else(|| Error::Tensor(format!("the plan reads {}, which the call has not", binding.role)))
    });
    let tensors: SmallVec<[DeviceBuffer; 16]> = tensors.collect::<Result<_, _>>()?;
    let numbers = ready.order().scalars().iter().map(|binding| {
        let of = run.entry.scalars.iter().find(|(role, ..)| *role == binding.role);
        of.map(|(.., scalar)| run.number(scalar))
            .ok_or_else(|| Error::Tensor(format!("the plan reads {}, which the call has not", binding.role)))
    });
    let scalars: SmallVec<[Number; 6]> = numbers.collect::<Result<_, _>>()?;
    let args = RawArgs { tensors: &tensors, scalars: &scalars, workspace, interleaved: &[] };
    // SAFETY: the addresses are those of candle's tensors, which lie as the description says and which candle frees on
    // this stream; scratch memory is this launch's own; lengths, offsets and tables were checked on the host.
    unsafe { ready.launch_with(&args, raw) }.map_err(Error::from)?;
    drop(guards);
    Ok(outputs.into_iter().zip(&run.outputs).map(|(memory, out)| (memory.give(device), out.shape.clone())).collect())
}

/// Numbers that kernels follow, to be written where a tensor lies.
pub(crate) enum Numbers {
    Wide(Vec<i64>),
    Narrow(Vec<i32>),
}

impl Numbers {
    pub(crate) fn new(role: graph::Role, numbers: Vec<i64>, dtype: DType) -> Result<Numbers, Error> {
        if dtype == DType::I64 {
            return Ok(Numbers::Wide(numbers));
        }
        let narrow = |n: i64| i32::try_from(n).map_err(|_| Error::Tensor(format!("{role}: {n} needs 64 bits")));
        Ok(Numbers::Narrow(numbers.into_iter().map(narrow).collect::<Result<_, _>>()?))
    }
}

impl InplaceOp1 for Numbers {
    fn name(&self) -> &'static str {
        "qkvault-numbers"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        Err(Error::Tensor("numbers on the CPU are not uploaded".to_owned()).into())
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        let stream = storage.device.cuda_stream();
        // In the order of the stream: behind the launches that read the step before.
        let written = match (self, &mut storage.slice) {
            (Numbers::Wide(numbers), CudaStorageSlice::I64(slice)) => stream.memcpy_htod(numbers, slice),
            (Numbers::Narrow(numbers), CudaStorageSlice::I32(slice)) => stream.memcpy_htod(numbers, slice),
            _ => return Err(Error::Tensor("numbers of another type were uploaded".to_owned()).into()),
        };
        written.map_err(candle_core::Error::wrap)
    }
}

/// What kernels follow, in the plan's own types.
fn followed(run: &Run<'_>, ready: &RawReady, device: &CudaDevice) -> candle_core::Result<Vec<(graph::Role, Tensor)>> {
    let device = Device::Cuda(device.clone());
    let mut all = Vec::new();
    for binding in ready.order().tensors() {
        let role = binding.role;
        let drawn = match role {
            graph::Role::DropoutSeed => Some(0),
            graph::Role::DropoutOffset => Some(1),
            _ => None,
        };
        if let (Some(at), Some((_, numbers))) = (drawn, run.options.dropout) {
            all.push((role, Tensor::new(&numbers[at..=at], &device)?));
        } else if let (true, Some(sequences)) = (role.is_followed(), run.sequences) {
            let dtype = if binding.dtype == graph::DType::I64 { DType::I64 } else { DType::I32 };
            all.push((role, sequences.tensor(role, &run.entry.valid, dtype, &device)?));
        }
    }
    Ok(all)
}

/// The memory of a tensor on a stream.
fn address<'a>(
    storage: &'a Storage,
    layout: &Layout,
    tensor: &Tensor,
    stream: &'a CudaStream,
) -> Result<(DeviceBuffer, SyncOnDrop<'a>), Error> {
    let Storage::Cuda(storage) = storage else {
        return Err(Error::Tensor("a tensor is not on the GPU".to_owned()));
    };
    let size = tensor.dtype().size_in_bytes();
    // Kernels read 16-bit elements in pairs, and allocations end at whole words.
    let bytes = (span(tensor) * size).next_multiple_of(4) as u64;
    macro_rules! pointer {
        ($($name:ident),+) => {
            match &storage.slice {
                $(CudaStorageSlice::$name(slice) => slice.device_ptr(stream),)+
                _ => return Err(Error::Tensor(format!("{:?} is not read", tensor.dtype()))),
            }
        };
    }
    let (address, guard) = pointer!(F16, BF16, F32, I32, U32, I64, U8);
    Ok((DeviceBuffer { address: address + (layout.start_offset() * size) as u64, bytes }, guard))
}

/// Memory of a new output.
struct Memory {
    slice: CudaStorageSlice,
    bytes: u64,
}

impl Memory {
    fn new(device: &CudaDevice, dtype: DType, elements: usize, poison: bool) -> candle_core::Result<Memory> {
        // SAFETY: the launch writes it before anything reads it.
        let slice = unsafe {
            match dtype {
                DType::F16 => CudaStorageSlice::F16(device.alloc::<f16>(elements)?),
                DType::BF16 => CudaStorageSlice::BF16(device.alloc::<bf16>(elements)?),
                _ => CudaStorageSlice::F32(device.alloc::<f32>(elements)?),
            }
        };
        let mut memory = Memory { slice, bytes: (elements * dtype.size_in_bytes()) as u64 };
        if poison {
            let stream = device.cuda_stream();
            let length = usize::try_from(memory.bytes).unwrap_or(0);
            let (buffer, _guard) = memory.address(&stream);
            // SAFETY: the whole of the new memory, on its own stream.
            unsafe { result::memset_d8_async(buffer.address, POISON, length, stream.cu_stream()) }
                .map_err(|error| Error::Tensor(format!("the driver could not fill an output: {error}")))?;
        }
        Ok(memory)
    }

    fn address<'a>(&'a mut self, stream: &'a CudaStream) -> (DeviceBuffer, SyncOnDrop<'a>) {
        let bytes = self.bytes;
        let (address, guard) = match &mut self.slice {
            CudaStorageSlice::F16(slice) => slice.device_ptr_mut(stream),
            CudaStorageSlice::BF16(slice) => slice.device_ptr_mut(stream),
            CudaStorageSlice::F32(slice) => slice.device_ptr_mut(stream),
            _ => unreachable!("made above"),
        };
        (DeviceBuffer { address, bytes }, guard)
    }

    fn give(self, device: &CudaDevice) -> Storage {
        Storage::Cuda(CudaStorage { slice: self.slice, device: device.clone() })
    }
}
