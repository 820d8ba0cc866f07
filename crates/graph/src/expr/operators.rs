//! Operators and named methods of [`Expr`]. They never fail: `build` checks types.

use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Rem, Sub};

use super::handle::Expr;
use super::ops::{Binary, Compare, Logic, Unary};

macro_rules! binary_operator {
    ($trait:ident, $method:ident, $make:expr, $($scalar:ty),+) => {
        binary_operator!(@pair $trait, $method, $make, Expr, Expr);
        binary_operator!(@pair $trait, $method, $make, Expr, &Expr);
        binary_operator!(@pair $trait, $method, $make, &Expr, Expr);
        binary_operator!(@pair $trait, $method, $make, &Expr, &Expr);
        $(
            binary_operator!(@pair $trait, $method, $make, Expr, $scalar);
            binary_operator!(@pair $trait, $method, $make, &Expr, $scalar);
            binary_operator!(@pair $trait, $method, $make, $scalar, Expr);
            binary_operator!(@pair $trait, $method, $make, $scalar, &Expr);
        )+
    };
    (@pair $trait:ident, $method:ident, $make:expr, $left:ty, $right:ty) => {
        impl $trait<$right> for $left {
            type Output = Expr;

            fn $method(self, other: $right) -> Expr {
                $make(self.into(), other.into())
            }
        }
    };
}

binary_operator!(Add, add, |a, b| Expr::binary(Binary::Add, a, b), f32, i32);
binary_operator!(Sub, sub, |a, b| Expr::binary(Binary::Sub, a, b), f32, i32);
binary_operator!(Mul, mul, |a, b| Expr::binary(Binary::Mul, a, b), f32, i32);
binary_operator!(Div, div, |a, b| Expr::binary(Binary::Div, a, b), f32, i32);
binary_operator!(Rem, rem, |a, b| Expr::binary(Binary::Rem, a, b), f32, i32);
binary_operator!(BitAnd, bitand, |a, b| Expr::logic(Logic::And, a, b), bool);
binary_operator!(BitOr, bitor, |a, b| Expr::logic(Logic::Or, a, b), bool);

impl Neg for Expr {
    type Output = Expr;

    fn neg(self) -> Expr {
        self.unary(Unary::Neg)
    }
}

impl Neg for &Expr {
    type Output = Expr;

    fn neg(self) -> Expr {
        self.unary(Unary::Neg)
    }
}

impl Not for Expr {
    type Output = Expr;

    fn not(self) -> Expr {
        self.negated_truth()
    }
}

impl Not for &Expr {
    type Output = Expr;

    fn not(self) -> Expr {
        self.negated_truth()
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident;)+) => {
        impl Expr {
            $($(#[$doc])*
            #[must_use]
            pub fn $method(&self) -> Expr {
                self.unary(Unary::$op)
            })+
        }
    };
}

unary_methods! {
    /// [`Unary::Abs`].
    abs => Abs;
    /// [`Unary::Exp`].
    exp => Exp;
    /// [`Unary::Log`].
    log => Log;
    /// [`Unary::Sqrt`].
    sqrt => Sqrt;
    /// [`Unary::Rsqrt`].
    rsqrt => Rsqrt;
    /// [`Unary::Reciprocal`].
    reciprocal => Reciprocal;
    /// [`Unary::Sin`].
    sin => Sin;
    /// [`Unary::Cos`].
    cos => Cos;
    /// [`Unary::Tan`].
    tan => Tan;
    /// [`Unary::Tanh`].
    tanh => Tanh;
    /// [`Unary::Sigmoid`].
    sigmoid => Sigmoid;
    /// [`Unary::Erf`].
    erf => Erf;
    /// [`Unary::Floor`].
    floor => Floor;
    /// [`Unary::Ceil`].
    ceil => Ceil;
    /// [`Unary::Relu`].
    relu => Relu;
    /// [`Unary::Elu`].
    elu => Elu;
    /// [`Unary::Gelu`].
    gelu => Gelu;
    /// [`Unary::GeluTanh`].
    gelu_tanh => GeluTanh;
    /// [`Unary::Softplus`].
    softplus => Softplus;
    /// [`Unary::Swish`].
    swish => Swish;
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident;)+) => {
        impl Expr {
            $($(#[$doc])*
            #[must_use]
            pub fn $method(&self, other: impl Into<Expr>) -> Expr {
                Expr::binary(Binary::$op, self.clone(), other.into())
            })+
        }
    };
}

binary_methods! {
    /// [`Binary::Min`].
    min => Min;
    /// [`Binary::Max`].
    max => Max;
    /// [`Binary::Pow`].
    pow => Pow;
    /// [`Binary::FloorRem`]; for [`Binary::Rem`] write `a % b`.
    floor_rem => FloorRem;
    /// [`Binary::Atan2`]: this expression is the ordinate.
    atan2 => Atan2;
    /// [`Binary::FloorDiv`], in text `a // b`: an integer by an integer constant.
    floor_div => FloorDiv;
}

macro_rules! compare_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident;)+) => {
        impl Expr {
            $($(#[$doc])*
            #[must_use]
            pub fn $method(&self, other: impl Into<Expr>) -> Expr {
                self.compare(Compare::$op, other)
            })+
        }
    };
}

compare_methods! {
    /// [`Compare::Eq`].
    eq => Eq;
    /// [`Compare::Ne`].
    ne => Ne;
    /// [`Compare::Lt`].
    lt => Lt;
    /// [`Compare::Le`].
    le => Le;
    /// [`Compare::Gt`].
    gt => Gt;
    /// [`Compare::Ge`].
    ge => Ge;
}

impl Expr {
    /// [`Logic::And`], also written `a & b`.
    #[must_use]
    pub fn and(&self, other: impl Into<Expr>) -> Expr {
        Expr::logic(Logic::And, self.clone(), other.into())
    }

    /// [`Logic::Or`], also written `a | b`.
    #[must_use]
    pub fn or(&self, other: impl Into<Expr>) -> Expr {
        Expr::logic(Logic::Or, self.clone(), other.into())
    }
}
