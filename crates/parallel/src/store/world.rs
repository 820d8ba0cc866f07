//! Which rank this process is, how many there are, and where they meet.

use serde::{Deserialize, Serialize};

use super::secret::Secret;
use crate::comm::CommError;

/// A rank among others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct World {
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// This rank's number on its machine: its GPU.
    pub local_rank: u32,
    /// The name or address of the machine of rank 0.
    pub address: String,
    /// The port that rank 0 listens at.
    pub port: u16,
    /// What the ranks prove to each other when they meet. Without one they meet on one machine alone, at an address of
    /// its loopback, which every program of that machine reaches. It is never written with the rest.
    #[serde(skip)]
    pub secret: Option<Secret>,
}

/// The variables of launchers: rank, number of ranks, rank on the machine.
const LAUNCHERS: [[&str; 3]; 4] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];

/// How far from the port of a launcher's own store this one listens: torchrun listens at `MASTER_PORT` itself.
const BESIDE: u16 = 17;

impl World {
    /// The world of one machine, for threads and tests.
    #[must_use]
    pub fn local(rank: u32, size: u32, port: u16) -> World {
        World { rank, size, local_rank: rank, address: "127.0.0.1".to_owned(), port, secret: None }
    }

    /// The world with a secret, the same for all of its ranks.
    #[must_use]
    pub fn with_secret(mut self, secret: Secret) -> World {
        self.secret = Some(secret);
        self
    }

    /// What the launcher says: torchrun's `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, or the variables of Open MPI, of MPICH,
    /// of Slurm; and `MASTER_ADDR` and `MASTER_PORT`, which torchrun sets, and a job script for the others. The store
    /// listens 17 above `MASTER_PORT`, where torchrun has its own, or at `QKVAULT_PORT`. The secret is
    /// `QKVAULT_RANKS_SECRET`, or in the file that `QKVAULT_RANKS_SECRET_FILE` names, which only its owner may read.
    ///
    /// # Errors
    ///
    /// [`CommError::Address`] with the variable that is missing or no number; [`CommError::Secret`] for a secret that
    /// is too short, or a file that others may read.
    pub fn from_env() -> Result<World, CommError> {
        // Text that is not Unicode is refused where it is read, not taken for a variable that is not set.
        World::from_variables(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// [`World::from_env`] with other variables than those of this process.
    ///
    /// # Errors
    ///
    /// As [`World::from_env`].
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<World, CommError> {
        let address = |what: String| CommError::Address { what };
        let number = |name: &str| {
            let text = get(name).ok_or_else(|| address(format!("{name} is not set")))?;
            text.trim().parse::<u32>().map_err(|_| address(format!("{name} is '{text}', which is no number")))
        };
        let launcher = LAUNCHERS.into_iter().find(|[rank, ..]| get(rank).is_some());
        let Some([rank, size, local]) = launcher else {
            let names: Vec<&str> = LAUNCHERS.iter().map(|[rank, ..]| *rank).collect();
            return Err(address(format!("none of {} is set", names.join(", "))));
        };
        let (rank, size) = (number(rank)?, number(size)?);
        let local_rank = if get(local).is_some() { number(local)? } else { rank };
        if rank >= size {
            return Err(address(format!("rank {rank} of {size} ranks: ranks are counted from 0")));
        }
        let host = get("MASTER_ADDR").ok_or_else(|| address("MASTER_ADDR is not set".to_owned()))?;
        let (name, port) = match get("QKVAULT_PORT") {
            Some(_) => ("QKVAULT_PORT", number("QKVAULT_PORT")?),
            None => ("MASTER_PORT", number("MASTER_PORT")?.saturating_add(BESIDE.into())),
        };
        let port = u16::try_from(port).map_err(|_| address(format!("{name} gives port {port}, beyond 65535")))?;
        let secret = Secret::from_variables(&get)?;
        Ok(World { rank, size, local_rank, address: host, port, secret })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(list: &[(&str, &str)]) -> Result<World, String> {
        let get = |name: &str| list.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        World::from_variables(get).map_err(|e| e.to_string())
    }

    #[test]
    fn every_launcher_says_which_rank_this_is() {
        let at = [("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
        let torchrun = [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")];
        let slurm = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "1")];
        let mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")];
        for launcher in [torchrun, slurm, mpi] {
            let found = world(&[&at[..], &launcher[..]].concat()).expect("complete");
            assert_eq!((found.rank, found.size, found.local_rank, found.port), (3, 8, 1, 29_517));
            assert_eq!(found.address, "node1");
        }
        let own = [&at[..], &torchrun[..], &[("QKVAULT_PORT", "4000")]].concat();
        assert_eq!(world(&own).expect("complete").port, 4_000);
    }

    #[test]
    fn a_missing_or_wrong_variable_is_named() {
        assert!(world(&[]).unwrap_err().contains("none of RANK, OMPI_COMM_WORLD_RANK"));
        assert!(world(&[("RANK", "0")]).unwrap_err().contains("WORLD_SIZE is not set"));
        assert!(world(&[("RANK", "x"), ("WORLD_SIZE", "2")]).unwrap_err().contains("RANK is 'x'"));
        assert!(world(&[("RANK", "2"), ("WORLD_SIZE", "2")]).unwrap_err().contains("rank 2 of 2"));
        let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "65530")];
        assert!(world(&torchrun[..3]).unwrap_err().contains("MASTER_PORT is not set"));
        assert!(world(&torchrun).unwrap_err().contains("beyond 65535"));
        let at = [("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        let secret = |text| world(&[&torchrun[..2], &at[..], &[("QKVAULT_RANKS_SECRET", text)]].concat());
        let error = secret("hunter2").unwrap_err();
        assert!(error.contains("QKVAULT_RANKS_SECRET has 7 bytes") && !error.contains("hunter2"), "{error}");
        let found = secret("correct-horse-battery").expect("long enough");
        assert!(found.secret.is_some() && !format!("{found:?}").contains("horse"));
        let written = serde_json::to_string(&found).expect("is JSON");
        assert!(!written.contains("secret") && !written.contains("horse"), "{written}");
    }
}
