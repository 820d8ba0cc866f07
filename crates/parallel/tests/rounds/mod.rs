//! Exchanges that every rank makes with every other, for tests of what ranks hear.

use qkvault_parallel::{CommError, Communicator, RankMessage};

/// Rounds of exchanges of every rank with every other, until one fails.
pub(crate) fn rounds(rank: &mut dyn Communicator, count: u64) -> Result<(), CommError> {
    let (own, size) = (rank.rank(), rank.size());
    let mut buffer = vec![0_u8; size as usize * 64];
    for round in 0..count {
        buffer[own as usize * 64..][..64].fill((round as u8).wrapping_add(own as u8));
        let at = |peer: u32| buffer.as_ptr() as u64 + u64::from(peer) * 64;
        let mut list = Vec::new();
        for peer in (0..size).filter(|peer| *peer != own) {
            list.push(RankMessage { peer, send: true, address: at(own), bytes: 64 });
            list.push(RankMessage { peer, send: false, address: at(peer), bytes: 64 });
        }
        // SAFETY: the addresses are in a buffer of this frame, 64 bytes for each rank; the exchange is of hosts, so it
        // has ended when it returns.
        unsafe { rank.exchange(&list, std::ptr::null_mut())? };
        for peer in 0..size as usize {
            assert!(buffer[peer * 64..][..64].iter().all(|x| *x == (round as u8).wrapping_add(peer as u8)));
        }
    }
    Ok(())
}

/// A port of this machine that nobody listens at.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
