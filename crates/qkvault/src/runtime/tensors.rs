//! Plans of what is no attention: conversions to and from 8 bits, appends to caches, combinations of tensors.

use std::sync::Arc;

use qkvault_exec::LoadedPlan;
use qkvault_graph::{ValidCacheAppend, ValidCombination, ValidConversion};

use super::{OnGpu, Runtime};
use crate::Error;

impl Runtime {
    /// The plan of a conversion to or from 8 bits, loaded on the GPU, as [`Runtime::plan`] loads and keeps plans. It is
    /// compiled by NVRTC and needs no cuDNN.
    ///
    /// # Errors
    ///
    /// As [`Runtime::plan`]; [`ErrorKind::Refused`](crate::ErrorKind::Refused) for a GPU before compute capability 8.9.
    ///
    /// ```no_run
    /// use qkvault::graph::{Conversion, ConversionKind, Role, Tensor};
    /// use qkvault::prelude::*;
    ///
    /// let runtime = Runtime::open()?;
    /// // 4096 tokens of 32 heads to e4m3, with a scale of their own largest magnitude.
    /// let queries = Tensor::bshd(1, 32, 4096, 128, DType::BF16);
    /// let kind = ConversionKind::Current { power_of_two: false };
    /// let plan = runtime.conversion(&Conversion::to(DType::E4M3, queries, kind).validate()?)?;
    ///
    /// let stream = runtime.device()?.context().new_stream()?;
    /// let wide = stream.alloc_zeros::<half::bf16>(4096 * 32 * 128)?;
    /// let mut narrow = stream.alloc_zeros::<u8>(4096 * 32 * 128)?;
    /// let one = || stream.alloc_zeros::<f32>(1);
    /// let (mut scale, mut descale, mut amax) = (one()?, one()?, one()?);
    /// let args = Args::new().tensor(Role::Wide, &wide).tensor_mut(Role::Narrow, &mut narrow);
    /// let args = args.tensor_mut(Role::NarrowScale, &mut scale).tensor_mut(Role::NarrowAmax, &mut amax);
    /// plan.launch(&stream, args.tensor_mut(Role::NarrowDescale, &mut descale))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn conversion(&self, of: &ValidConversion) -> Result<Arc<LoadedPlan>, Error> {
        let (OnGpu { loaded, session }, on_miss) = (self.here()?, self.inner.on_miss);
        let planner = self.inner.offline.on_miss(on_miss);
        Ok(loaded.get_or_load(&of.fingerprint(), || session.prepare_conversion(planner, of, on_miss))?)
    }

    /// The plan of an append of new keys and values to caches, loaded on the GPU, as [`Runtime::plan`] loads and keeps
    /// plans. It is compiled by NVRTC and needs no cuDNN.
    ///
    /// # Errors
    ///
    /// As [`Runtime::plan`]; [`ErrorKind::Refused`](crate::ErrorKind::Refused) for caches in 8 bits before compute
    /// capability 8.9.
    ///
    /// ```no_run
    /// use qkvault::graph::{CacheAppend, Fp8, Role, Scaled, Tensor};
    /// use qkvault::prelude::*;
    ///
    /// let runtime = Runtime::open()?;
    /// // Steps of at most 16 new tokens of a sequence over pages in e4m3.
    /// let mut attention = Attention::bshd(64, (32, 8), (16, 4096), 128, DType::E4M3).with_lengths();
    /// attention.k = Tensor::paged_nhd(64, 8, 4096, 128, 9000, 16, DType::E4M3);
    /// (attention.v, attention.fp8) = (attention.k, Some(Fp8::Delayed));
    /// let append = runtime.append(&CacheAppend::before(&attention, DType::BF16).validate()?)?;
    /// let plan = runtime.plan(&attention.validate()?)?;
    /// # use qkvault::exec::cudarc::driver::CudaSlice;
    /// # fn step(
    /// #     append: &LoadedPlan, stream: &std::sync::Arc<qkvault::exec::cudarc::driver::CudaStream>,
    /// #     batch: &qkvault::exec::BatchMetadata, [new_k, new_v]: [&CudaSlice<half::bf16>; 2],
    /// #     [pool_k, pool_v]: [&mut CudaSlice<u8>; 2], [descale_k, descale_v]: [&CudaSlice<f32>; 2],
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // In every step and layer, before the attention, with the same batch (`BatchMetadata::with_append`):
    /// let args = Args::new().tensor(Role::NewK, new_k).tensor(Role::NewV, new_v).batch(batch);
    /// let args = args.tensor_mut(Role::K, pool_k).tensor_mut(Role::V, pool_v);
    /// let args = args.tensor(Role::Descale(Scaled::K), descale_k).tensor(Role::Descale(Scaled::V), descale_v);
    /// append.launch(stream, args)?;
    /// # Ok(())
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append(&self, of: &ValidCacheAppend) -> Result<Arc<LoadedPlan>, Error> {
        let (OnGpu { loaded, session }, on_miss) = (self.here()?, self.inner.on_miss);
        let planner = self.inner.offline.on_miss(on_miss);
        Ok(loaded.get_or_load(&of.fingerprint(), || session.prepare_append(planner, of, on_miss))?)
    }

    /// The plan of a combination of tensors, loaded on the GPU, as [`Runtime::plan`] loads and keeps plans: a merge of
    /// outputs over different keys, a sum of gradients, a copy or a fill. It is compiled by NVRTC and needs no cuDNN.
    ///
    /// # Errors
    ///
    /// As [`Runtime::plan`]; a combination is never refused.
    ///
    /// ```no_run
    /// use qkvault::graph::{Combination, Partial, Role, Tensor};
    /// use qkvault::prelude::*;
    ///
    /// let runtime = Runtime::open()?;
    /// // 64 sequences of 32 heads, each over two parts of its keys.
    /// let o = Tensor::bshd(64, 32, 1, 128, DType::BF16);
    /// let part = Partial { o, stats: Tensor::bhsd(64, 32, 1, 1, DType::F32) };
    /// let merge = Combination::Merge { parts: vec![part; 2], rows: false, sink: false, o, stats: None };
    /// let plan = runtime.combination(&merge.validate()?)?;
    ///
    /// let stream = runtime.device()?.context().new_stream()?;
    /// let outputs = || stream.alloc_zeros::<half::bf16>(64 * 32 * 128);
    /// let logs = || stream.alloc_zeros::<f32>(64 * 32);
    /// let (first, second, mut o) = (outputs()?, outputs()?, outputs()?);
    /// let (first_log, second_log) = (logs()?, logs()?);
    /// let args = Args::new().tensor(Role::Part(0), &first).tensor(Role::PartStats(0), &first_log);
    /// let args = args.tensor(Role::Part(1), &second).tensor(Role::PartStats(1), &second_log);
    /// plan.launch(&stream, args.o(&mut o))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn combination(&self, of: &ValidCombination) -> Result<Arc<LoadedPlan>, Error> {
        let (OnGpu { loaded, session }, on_miss) = (self.here()?, self.inner.on_miss);
        let planner = self.inner.offline.on_miss(on_miss);
        Ok(loaded.get_or_load(&of.fingerprint(), || session.prepare_combination(planner, of, on_miss))?)
    }
}
