//! The load client's program.
//!
//! ```text
//! load bench --model 1b --vault DIR --out server.json    # starts the servers itself
//! load soak --minutes 10 --model 1b --vault DIR --out soak.json
//! load soak --minutes 0.1 --users 16 --model tiny --cpu  # without a GPU
//! ```

use clap::Parser as _;
use qkvault_server::Failure;
use qkvault_server::load::Load;

fn main() -> Result<(), Failure> {
    Load::parse().run()
}
