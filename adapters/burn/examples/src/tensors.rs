//! The tensors of a case: numbers of its family, in its order in memory, and their gradients.

use burn_tensor::backend::{AutodiffBackend, Backend};
use burn_tensor::{Bool, DType, Tensor, TensorData};

use crate::case::Case;
use crate::dice::Dice;

/// What is special about the numbers of a case: those of random ones hide faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Normal,
    /// All scores are near -60.
    Below,
    /// All keys are the same.
    Constant,
    /// The first key has nearly all of each row's weight.
    Dominant,
    Zero,
}

/// The tensors of a case. Sequences one after another are one of a batch of 1.
#[derive(Clone, Debug)]
pub struct Leaves<B: Backend> {
    /// Q, K and V: (batch, head, sequence, head dim).
    pub qkv: [Tensor<B, 4>; 3],
    /// Added to the scores.
    pub bias: Option<Tensor<B, 4>>,
    /// ALiBi's slopes.
    pub slopes: Option<Tensor<B, 1>>,
    /// A logit of each head.
    pub sink: Option<Tensor<B, 1>>,
    /// True where keys are hidden.
    pub mask: Option<Tensor<B, 4, Bool>>,
}

impl Case {
    /// The tensors on a device: in the case's types, or all in float32 for a plain attention.
    pub fn leaves<B: Backend>(&self, device: &B::Device, wide: bool) -> Leaves<B> {
        let mut dice = Dice::new(self.seed ^ 0x1234);
        let (heads, kv) = self.heads;
        let dtype = |own| if wide { DType::F32 } else { own };
        let mut operand = |of: usize, heads: usize, rows: usize| {
            let dims = [self.batch, heads, rows, self.d];
            let numbers = self.shaped(of, dims, dice.numbers(dims.iter().product()));
            self.placed(dims, numbers, dtype(self.dtype), device)
        };
        let qkv = [operand(0, heads, self.rows), operand(1, kv, self.keys), operand(2, kv, self.keys)];
        let line = |numbers: Vec<f32>, own: DType| {
            let data = TensorData::new(numbers, [heads]).convert_dtype(own);
            Tensor::<B, 1>::from_data(data.convert_dtype(dtype(own)), (device, dtype(own)))
        };
        let bias = self.bias.map(|dims| {
            let flat = TensorData::new(dice.numbers(dims.iter().product()), [dims.iter().product::<usize>()]);
            let data = flat.convert_dtype(self.dtype).convert_dtype(dtype(self.dtype));
            Tensor::<B, 1>::from_data(data, (device, dtype(self.dtype))).reshape(dims)
        });
        let mask = self.mask.map(|dims| {
            let [_, _, rows, keys] = dims;
            // Each query sees the key at which it stands.
            let own = |at: usize| (at / keys) % rows + keys - rows == at % keys;
            let hidden: Vec<bool> = (0..dims.iter().product()).map(|at| dice.yes(4) && !own(at)).collect();
            Tensor::<B, 4, Bool>::from_data(TensorData::new(hidden, dims), device)
        });
        // Of slopes with a gradient the type is 16 bits, in which it is summed.
        let slope = if self.tracked[4] { self.dtype } else { DType::F32 };
        let slopes = self.slopes.then(|| line(dice.numbers(heads).iter().map(|x| x.abs() * 0.1).collect(), slope));
        let sink = self.sink.then(|| line(dice.numbers(heads), DType::F32));
        Leaves { qkv, bias, slopes, sink, mask }
    }

    /// A tensor of (batch, head, sequence, head dim) in the case's order, without gaps on every backend.
    fn placed<B: Backend>(
        &self,
        dims: [usize; 4],
        numbers: Vec<f32>,
        dtype: DType,
        device: &B::Device,
    ) -> Tensor<B, 4> {
        let [b, h, s, d] = dims;
        let (numbers, memory) = match self.turned {
            false => (numbers, dims),
            true => {
                let from = |at: usize| {
                    let (x, head, row, batch) = (at % d, at / d % h, at / d / h % s, at / d / h / s);
                    ((batch * h + head) * s + row) * d + x
                };
                ((0..numbers.len()).map(|at| numbers[from(at)]).collect(), [b, s, h, d])
            }
        };
        let flat = TensorData::new(numbers, [b * h * s * d]).convert_dtype(self.dtype).convert_dtype(dtype);
        let own = Tensor::<B, 1>::from_data(flat, (device, dtype)).reshape(memory);
        if self.turned { own.swap_dims(1, 2) } else { own }
    }

    /// Numbers of the family for Q (0), K (1) or V (2).
    fn shaped(&self, of: usize, [_, _, s, d]: [usize; 4], mut numbers: Vec<f32>) -> Vec<f32> {
        let root = (d as f32).sqrt();
        for head in numbers.chunks_exact_mut(s * d) {
            let first = head[..d].to_vec();
            for (at, x) in head.iter_mut().enumerate() {
                let (row, at) = (at / d, at % d);
                *x = match (self.family, of, at) {
                    (Family::Normal, ..) | (_, 2, _) => *x,
                    (Family::Constant, 1, _) => first[at],
                    (Family::Constant, ..) => *x,
                    (Family::Zero, ..) => 0.0,
                    (_, 0, 0) => 1.0,
                    (Family::Dominant, 1, _) if row > 0 => 0.0,
                    (Family::Dominant, 1, 0) => 20.0 * root,
                    (Family::Below, 1, 0) => -60.0 * root,
                    _ => 0.125 * *x,
                };
            }
        }
        numbers
    }

    /// Weights of the output in a loss, which are its gradient: (batch, head, query, head dim).
    pub fn weights<B: Backend>(&self, device: &B::Device, dtype: DType) -> Tensor<B, 4> {
        let dims = [self.batch, self.heads.0, self.rows, self.d];
        let numbers = Dice::new(self.seed ^ 0x77).numbers(dims.iter().product());
        self.placed(dims, numbers, dtype, device)
    }
}

/// (1, head, token, head dim) as (token, head, head dim).
pub fn tokens<B: Backend>(own: Tensor<B, 4>) -> Tensor<B, 3> {
    let [_, h, s, d] = own.dims();
    own.swap_dims(1, 2).reshape([s, h, d])
}

impl<B: AutodiffBackend> Leaves<B> {
    /// The same with gradients for what is tracked.
    #[must_use]
    pub fn tracked(self, tracked: [bool; 6]) -> Leaves<B> {
        let [q, k, v] = self.qkv;
        let when = |own: Tensor<B, 4>, yes: bool| if yes { own.require_grad() } else { own };
        let line = |own: Tensor<B, 1>, yes: bool| if yes { own.require_grad() } else { own };
        Leaves {
            qkv: [when(q, tracked[0]), when(k, tracked[1]), when(v, tracked[2])],
            bias: self.bias.map(|own| when(own, tracked[3])),
            slopes: self.slopes.map(|own| line(own, tracked[4])),
            sink: self.sink.map(|own| line(own, tracked[5])),
            mask: self.mask,
        }
    }

    /// The gradients in the order of places; none where nothing is tracked.
    pub fn gradients(&self, of: &B::Gradients, tracked: [bool; 6]) -> [Option<TensorData>; 6] {
        let four = |own: Option<&Tensor<B, 4>>| own.and_then(|own| own.grad(of)).map(Tensor::into_data);
        let one = |own: &Option<Tensor<B, 1>>| own.as_ref().and_then(|own| own.grad(of)).map(Tensor::into_data);
        let [q, k, v] = &self.qkv;
        let all =
            [four(Some(q)), four(Some(k)), four(Some(v)), four(self.bias.as_ref()), one(&self.slopes), one(&self.sink)];
        let mut at = 0;
        all.map(|own| {
            at += 1;
            own.filter(|_| tracked[at - 1])
        })
    }
}
