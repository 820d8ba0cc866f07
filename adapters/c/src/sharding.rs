//! How ranks share an attention: a scheme, an order of tokens, and the schedule of both.

use qkvault::graph::Valid;
use qkvault::parallel::{GpuCluster, Schedule, Scheme, Sharding, TokenOrder, choose_among, schedule};

use crate::describe::qkv_attention;
use crate::handle::borrow;
use crate::sized::one;
use crate::status::{CallFailure, guarded_with_memory};

/// Each rank gets the keys and values that its queries see. Its number is groups of heads, of which one moves while
/// another is computed; 0: as many as are expected to be the fastest.
pub const QKV_SCHEME_GATHER: i32 = 0;
/// Each rank gets all tokens of some heads (Ulysses).
pub const QKV_SCHEME_HEADS: i32 = 1;
/// Keys and values go around.
pub const QKV_SCHEME_RING: i32 = 2;
/// Outputs over a cache whose keys lie on several ranks are merged. Its number is the run of neighbouring keys.
pub const QKV_SCHEME_DECODE: i32 = 3;

/// Rank `r` of `n` has the chunks `r` and `2n - 1 - r` of `2n`: the same work under a causal mask.
pub const QKV_ORDER_ZIGZAG: i32 = 0;
/// Rank `r` of `n` has the chunk `r` of `n`.
pub const QKV_ORDER_CONTIGUOUS: i32 = 1;

/// How ranks share an attention. It never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct qkv_sharding {
    /// A `QKV_SCHEME_` number.
    pub scheme: i32,
    /// A `QKV_ORDER_` number.
    pub order: i32,
    /// The number of the scheme, where it has one; else 0.
    pub number: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Whether so many ranks can share an attention: `QKV_OK`, or `QKV_ERROR_REFUSED` with codes that begin with `shard.`.
/// It needs no ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qkv_sharding_check(
    attention: *const qkv_attention,
    sharding: *const qkv_sharding,
    ranks: u32,
) -> i32 {
    guarded_with_memory(|| {
        // SAFETY: the caller promises an attention and a sharding.
        let (attention, sharding) = unsafe { (&borrow(attention)?.valid, one(sharding, "the sharding")?) };
        shared(attention, sharding, ranks).map(drop)
    })
}

/// The schedule of a sharding; of a gather whose groups nobody says, that with the best ones.
pub(crate) fn shared(attention: &Valid, given: qkv_sharding, ranks: u32) -> Result<Schedule, CallFailure> {
    let qkv_sharding { scheme, order, number, reserved } = given;
    let order = match order {
        QKV_ORDER_ZIGZAG => TokenOrder::ZigZag,
        QKV_ORDER_CONTIGUOUS => TokenOrder::Contiguous,
        other => return Err(CallFailure::argument(format!("the order is {other}; give a QKV_ORDER_ number"))),
    };
    if reserved != 0 {
        return Err(CallFailure::argument(format!("qkv_sharding.reserved is {reserved}; set it to 0")));
    }
    let of = |scheme| Sharding::new(ranks, scheme).with_order(order);
    let scheme = match scheme {
        QKV_SCHEME_GATHER if number == 0 => {
            // What refuses one group refuses all, and says it once.
            let first = schedule(attention, &of(Scheme::Gather { groups: 1 }))?;
            let (_, h_k, h_v) = attention.get().heads();
            let groups = (1..=8_u32).filter(|n| h_k % i64::from(*n) == 0 && h_v % i64::from(*n) == 0);
            let all: Vec<Sharding> = groups.map(|groups| of(Scheme::Gather { groups })).collect();
            let Some(machine) = GpuCluster::all().into_iter().next() else { return Ok(first) };
            return Ok(choose_among(attention, &all, &machine)?.schedule);
        }
        QKV_SCHEME_GATHER => Scheme::Gather { groups: number },
        QKV_SCHEME_HEADS => Scheme::Heads,
        QKV_SCHEME_RING => Scheme::Ring,
        QKV_SCHEME_DECODE => Scheme::Decode { run: number },
        other => return Err(CallFailure::argument(format!("the scheme is {other}; give a QKV_SCHEME_ number"))),
    };
    Ok(schedule(attention, &of(scheme))?)
}
