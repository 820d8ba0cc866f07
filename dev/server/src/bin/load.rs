//! The load client's program.
//!
//! ```text
//! load bench --model 1b --vault DIR --out server.json            # starts the servers itself
//! load bench --peer bench/server_peer.py --vault DIR             # and PyTorch's beside them
//! load preempt --vault DIR                                       # a pool that is too small
//! load bench --model tiny --cpu --seconds 1 --scored 20          # without a GPU
//! ```

use clap::Parser as _;
use qkvault_server::ServerError;
use qkvault_server::load::Load;

fn main() -> Result<(), ServerError> {
    Load::parse().run()
}
