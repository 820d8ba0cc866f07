//! Computes the attention on the CPU: the oracle instead of cuDNN, with operands rounded to 16 bits.

use qkvault::exec::Training;
use qkvault::graph::{DType, Role};
use qkvault_reference::{Buffer, Inputs, alibi_slopes, backward, forward};

use crate::Failure;
use crate::model::{Config, Machine};

pub(crate) struct Cpu {
    layers: [Training; 2],
    kept: [Inputs; 2],
    dtype: DType,
    cap: f32,
    plain: bool,
}

impl Cpu {
    pub(crate) fn new(config: &Config) -> Result<Cpu, Failure> {
        let Config { dtype, cap, plain, .. } = *config;
        Ok(Cpu { layers: config.attentions()?, kept: [Inputs::new(), Inputs::new()], dtype, cap, plain })
    }

    fn buffer(&self, values: &[f32]) -> Buffer {
        Buffer::from_values(self.dtype, values.iter().map(|&x| f64::from(x)))
    }
}

pub(crate) fn floats(buffer: &Buffer) -> Vec<f32> {
    (0..buffer.len()).map(|i| buffer.get(i) as f32).collect()
}

impl Machine for Cpu {
    fn attend(&mut self, layer: usize, qkv: [&[f32]; 3]) -> Result<Vec<f32>, Failure> {
        let attention = self.layers[layer].forward();
        let mut inputs = Inputs::new();
        for (role, values) in [Role::Q, Role::K, Role::V].into_iter().zip(qkv) {
            inputs.insert(role, self.buffer(values));
        }
        inputs.set_f32(Role::Scale, attention.default_scale());
        if self.plain {
            // Neither layer has an expression.
        } else if layer == 0 {
            inputs.set_f32(Role::Scalar(0), self.cap);
        } else {
            let slopes = alibi_slopes(attention, Role::ScoreTensor(0)).ok_or("the second layer has no slopes")?;
            inputs.insert(Role::ScoreTensor(0), slopes);
        }
        let outputs = forward(attention, &inputs)?;
        for role in [Role::O, Role::Stats] {
            inputs.insert(role, outputs.buffer(role).ok_or("the forward has no O or Stats")?);
        }
        let o = floats(inputs.buffer(Role::O)?);
        self.kept[layer] = inputs;
        Ok(o)
    }

    fn attend_back(&mut self, layer: usize, d_o: &[f32]) -> Result<[Vec<f32>; 3], Failure> {
        let d_o = self.buffer(d_o);
        self.kept[layer].insert(Role::DO, d_o);
        let outputs = backward(self.layers[layer].backward(), &self.kept[layer])?;
        let gradient = |role| outputs.buffer(role).map(|b| floats(&b)).ok_or("the backward lacks a gradient");
        Ok([gradient(Role::DQ)?, gradient(Role::DK)?, gradient(Role::DV)?])
    }

    fn record(&self) -> serde_json::Value {
        serde_json::json!({ "where": "the oracle, on the CPU" })
    }
}
