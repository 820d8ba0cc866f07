//! The operations of score expressions, their meaning, and their numbers in canonical bytes.
//!
//! There is only one zero: the sign of an IEEE 754 zero has no meaning here, although a device may show it as the sign
//! of an infinity.
//!
//! Codes never change and are never reused. The number in brackets is that of the cuDNN pointwise mode, if there is
//! one.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! operations {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal, $text:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
        }

        impl $name {
            /// Every operation of this kind, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The number of this operation in canonical bytes; it never changes and is never reused.
            #[must_use]
            pub const fn code(self) -> u8 {
                match self { $($name::$variant => $code,)+ }
            }

            /// The name used in text forms.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }

            /// The operation with this name in the text form.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|op| op.name() == name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

operations! {
    /// Operations on one number. `Neg` and `Abs` keep integers; the others are for floats.
    Unary {
        /// `-x` (16). Integers wrap.
        Neg = 1, "neg";
        /// `|x|` (10). Integers wrap: the absolute value of the smallest integer is itself.
        Abs = 2, "abs";
        /// `e^x` (13); overflows to infinity.
        Exp = 3, "exp";
        /// Natural logarithm (15); minus infinity at 0, NaN below.
        Log = 4, "log";
        /// Square root (4); NaN below 0.
        Sqrt = 5, "sqrt";
        /// `1 / sqrt(x)` (17); infinity at 0, NaN below.
        Rsqrt = 6, "rsqrt";
        /// `1 / x` (22); infinity at 0.
        Reciprocal = 7, "reciprocal";
        /// Sine (18), argument in radians.
        Sin = 8, "sin";
        /// Cosine (12), argument in radians.
        Cos = 9, "cos";
        /// Tangent (19), argument in radians.
        Tan = 10, "tan";
        /// Hyperbolic tangent (101).
        Tanh = 11, "tanh";
        /// `1 / (1 + e^-x)` (102).
        Sigmoid = 12, "sigmoid";
        /// Error function (20).
        Erf = 13, "erf";
        /// Largest whole number not above x (14).
        Floor = 14, "floor";
        /// Smallest whole number not below x (11).
        Ceil = 15, "ceil";
        /// `max(x, 0)` (100), no upper clip.
        Relu = 16, "relu";
        /// `x` above 0, `e^x - 1` elsewhere (103, alpha 1).
        Elu = 17, "elu";
        /// `x * (1 + erf(x / sqrt 2)) / 2` (104).
        Gelu = 18, "gelu";
        /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2` (107).
        GeluTanh = 19, "gelu_tanh";
        /// `log(1 + e^x)` (105, beta 1).
        Softplus = 20, "softplus";
        /// `x * sigmoid(x)` (106, beta 1).
        Swish = 21, "swish";
    }
}

operations! {
    /// Operations on two numbers of the same type. `Div`, `Pow` and `Atan2` are for floats, `FloorDiv` is for integers;
    /// the others are for floats and integers.
    Binary {
        /// `a + b` (0). Integers wrap.
        Add = 1, "add";
        /// `a - b` (9). Integers wrap.
        Sub = 2, "sub";
        /// `a * b` (1). Integers wrap.
        Mul = 3, "mul";
        /// `a / b` (6); division by zero follows IEEE 754.
        Div = 4, "div";
        /// The smaller (2); a number takes precedence over NaN.
        Min = 5, "min";
        /// The larger (3); a number takes precedence over NaN.
        Max = 6, "max";
        /// `a^b` (8), as IEEE 754 has it: NaN for a negative base with a fractional exponent, 1 for an exponent of 0.
        ///
        /// Engines whose power is one of a logarithm get other operations ([`Power`](super::Power)): products for whole
        /// constants up to 64, and the sign of a negative base. There, 1 with an exponent that is not
        /// finite and minus infinity with a fractional one may give NaN.
        Pow = 7, "pow";
        /// Remainder of truncated division (7, C's `fmod` and `%`): it has the sign of `a`.
        ///
        /// A float divisor of 0 gives NaN, an integer divisor of 0 gives 0; a constant 0 is refused. On a device, an
        /// integer remainder by 0 is undefined, so two more operations make it 0, unless the divisor is known not to be
        /// 0: a constant, or `max(x, 1)`.
        Rem = 8, "rem";
        /// Remainder of floored division (24, cuDNN 9.27): it has the sign of `b`. Zero divisors as for `Rem`.
        ///
        /// On a device it is `a - b * floor(a / b)` in float32, for integers too. That is exact if `|a| + |b|` is at
        /// most 2^24 (for floats: times a power of two of which both are whole multiples). Beyond, the quotient or the
        /// product may round, and the result may be off by `b` or by an odd unit; document ids, positions and periods
        /// are far smaller.
        FloorRem = 9, "floor_rem";
        /// Angle of the point with ordinate `a` and abscissa `b` (23), in (-pi, pi]; 0 at the origin.
        Atan2 = 10, "atan2";
        /// `a / b`, rounded down to a whole number, of an integer by an integer constant other than 0: `query // 128`
        /// is the block of a query. Integers wrap: the smallest one divided by -1 is itself.
        ///
        /// On a device it is `floor((a + 0.5) / b)` in float32, or `floor(a / b)` by a power of two. That is exact if
        /// `|a|` is below 2^22 for any constant, and up to 2^24 for a power of two. Lowering refuses a dividend that
        /// may be larger ([`floor_div_reach`](super::floor_div_reach)); limit it with `min` and `max`.
        FloorDiv = 11, "floor_div";
    }
}

operations! {
    /// Comparisons of two numbers of the same type. As in IEEE 754, all but `Ne` are false when an operand is NaN.
    Compare {
        /// `a == b` (300).
        Eq = 1, "==";
        /// `a != b` (301).
        Ne = 2, "!=";
        /// `a < b` (304).
        Lt = 3, "<";
        /// `a <= b` (305).
        Le = 4, "<=";
        /// `a > b` (302).
        Gt = 5, ">";
        /// `a >= b` (303).
        Ge = 6, ">=";
    }
}

operations! {
    /// Operations on two truth values. Negation is a separate node.
    Logic {
        /// Both (400).
        And = 1, "&";
        /// At least one (401).
        Or = 2, "|";
    }
}

impl Unary {
    /// Whether the operation works on integers (and returns them) as well as on floats.
    #[must_use]
    pub const fn takes_int(self) -> bool {
        matches!(self, Unary::Neg | Unary::Abs)
    }
}

impl Binary {
    /// Whether the operation works on integers (and returns them).
    #[must_use]
    pub const fn takes_int(self) -> bool {
        !matches!(self, Binary::Div | Binary::Pow | Binary::Atan2)
    }

    /// Whether floats are taken (and given back).
    #[must_use]
    pub const fn takes_float(self) -> bool {
        !matches!(self, Binary::FloorDiv)
    }

    /// Whether the operands can be exchanged without changing the result.
    #[must_use]
    pub const fn is_commutative(self) -> bool {
        matches!(self, Binary::Add | Binary::Mul | Binary::Min | Binary::Max)
    }
}

impl Compare {
    /// The equivalent comparison with exchanged operands: `a < b` is `b > a`.
    #[must_use]
    pub const fn flipped(self) -> Self {
        match self {
            Compare::Eq => Compare::Eq,
            Compare::Ne => Compare::Ne,
            Compare::Lt => Compare::Gt,
            Compare::Le => Compare::Ge,
            Compare::Gt => Compare::Lt,
            Compare::Ge => Compare::Le,
        }
    }

    /// The comparison that is true exactly if this one is false, for integers (floats differ if an operand is NaN).
    #[must_use]
    pub const fn negated(self) -> Self {
        match self {
            Compare::Eq => Compare::Ne,
            Compare::Ne => Compare::Eq,
            Compare::Lt => Compare::Ge,
            Compare::Le => Compare::Gt,
            Compare::Gt => Compare::Le,
            Compare::Ge => Compare::Lt,
        }
    }
}
