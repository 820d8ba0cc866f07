//! Computes the attention in 8 bits on the CPU: the oracle instead of cuDNN and of the conversions' kernels.

use qkvault::exec::{ScaleRecipe, Scales, Training};
use qkvault::graph::{Role, Scaled, Valid, ValidConversion, operands};
use qkvault_reference::{Buffer, ExactOutputs, Inputs, backward_of_o, convert, forward};

use crate::Failure;
use crate::cpu::floats;
use crate::model::{Config, Conversions, Machine};

/// How many steps a scale looks back.
pub(crate) const RECIPE: ScaleRecipe = ScaleRecipe { history: 16, margin: 0 };

/// One layer: its description, its scales, and what its forward keeps.
struct Layer {
    training: Training,
    scales: Scales,
    kept: Inputs,
    /// Largest magnitudes of this step.
    seen: Vec<(Scaled, f32)>,
}

pub(crate) struct Cpu {
    layers: Vec<Layer>,
    conversions: Conversions,
}

impl Cpu {
    pub(crate) fn new(config: &Config) -> Result<Cpu, Failure> {
        let layer = |training: Training| Layer {
            scales: Scales::new(&training, RECIPE),
            training,
            kept: Inputs::new(),
            seen: Vec::new(),
        };
        Ok(Cpu { layers: config.attentions()?.map(layer).into(), conversions: config.conversions()? })
    }
}

impl Layer {
    /// Binds the scales of a pass that no conversion wrote.
    fn bind(&mut self, pass: &Valid) {
        for operand in operands(pass).iter().filter(|o| !o.output) {
            if let Some(number) = self.scales.number(operand.role).filter(|_| self.kept.get(operand.role).is_none()) {
                self.kept.set_f32(operand.role, number);
            }
        }
    }

    /// Quantizes a tensor, and keeps it with its descale.
    fn quantize(
        &mut self,
        conversion: &ValidConversion,
        role: Role,
        which: Scaled,
        values: &[f32],
    ) -> Result<(), Failure> {
        let mut inputs = Inputs::new();
        inputs.insert(Role::Wide, Buffer::from_values(conversion.wide.dtype, values.iter().map(|&x| f64::from(x))));
        inputs.set_f32(Role::NarrowScale, self.scales.number(Role::ScaleOf(which)).ok_or("a tensor without a scale")?);
        let mut out = convert(conversion, &inputs)?;
        let mut take = |role| out.remove(&role).ok_or("a conversion lacks an output");
        self.kept.insert(role, take(Role::Narrow)?);
        self.kept.insert(Role::Descale(which), take(Role::NarrowDescale)?);
        self.seen.push((which, take(Role::NarrowAmax)?.get(0) as f32));
        Ok(())
    }

    /// The real numbers of an output.
    fn dequantize(&mut self, outputs: &ExactOutputs, role: Role, which: Scaled) -> Result<Vec<f32>, Failure> {
        if let Some(amax) = outputs.get(Role::Amax(which)) {
            self.seen.push((which, amax.values()[0] as f32));
        }
        let descale = self.scales.number(Role::Descale(which)).ok_or("a tensor without a scale")?;
        let stored = floats(&outputs.buffer(role).ok_or("an output is missing")?);
        Ok(stored.into_iter().map(|x| x * descale).collect())
    }
}

impl Machine for Cpu {
    fn attend(&mut self, layer: usize, qkv: [&[f32]; 3]) -> Result<Vec<f32>, Failure> {
        let Cpu { layers, conversions } = self;
        let layer = &mut layers[layer];
        layer.kept = Inputs::new();
        let which = [(Role::Q, Scaled::Q), (Role::K, Scaled::K), (Role::V, Scaled::V)];
        for ((role, which), values) in which.into_iter().zip(qkv) {
            layer.quantize(&conversions.inputs, role, which, values)?;
        }
        let pass = layer.training.forward().clone();
        layer.bind(&pass);
        layer.kept.set_f32(Role::Scale, pass.default_scale());
        let outputs = forward(&pass, &layer.kept)?;
        for role in [Role::O, Role::Stats] {
            layer.kept.insert(role, outputs.buffer(role).ok_or("the forward has no O or Stats")?);
        }
        layer.dequantize(&outputs, Role::O, Scaled::O)
    }

    fn attend_back(&mut self, layer: usize, d_o: &[f32]) -> Result<[Vec<f32>; 3], Failure> {
        let Cpu { layers, conversions } = self;
        let layer = &mut layers[layer];
        layer.quantize(&conversions.d_o, Role::DO, Scaled::DO, d_o)?;
        let pass = layer.training.backward().clone();
        layer.bind(&pass);
        let outputs = backward_of_o(&pass, &layer.kept)?;
        if let Some(amax) = outputs.get(Role::Amax(Scaled::DP)) {
            layer.seen.push((Scaled::DP, amax.values()[0] as f32));
        }
        let gradients = [
            layer.dequantize(&outputs, Role::DQ, Scaled::DQ)?,
            layer.dequantize(&outputs, Role::DK, Scaled::DK)?,
            layer.dequantize(&outputs, Role::DV, Scaled::DV)?,
        ];
        for (which, amax) in std::mem::take(&mut layer.seen) {
            layer.scales.observe(which, amax);
        }
        Ok(gradients)
    }

    fn record(&self) -> serde_json::Value {
        serde_json::json!({ "where": "the oracle in 8 bits, on the CPU" })
    }
}
