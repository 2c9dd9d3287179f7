// SPDX-License-Identifier: GPL-2.0-only
//! Reads how many cgroups have a CPU limit (`cpu.max`) that the scheduler enforces, and how many
//! limits it has rejected because its table is full (`bpf/limit_table.h`).
//!
//! Reading takes a few system calls, and requires the rights of the process that has loaded the
//! scheduler.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::layout::words;
use crate::seats::by_id;
use crate::{MapIds, ScxError, object};

/// Name of the map of the variable, which has a section of its own.
pub(crate) const LIMITS: &str = ".data.limits";
/// Size of `struct limit_table`.
const BYTES: usize = 40;

/// Numbers of cgroups with a CPU limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaCounts {
    /// Cgroups with a limit that the scheduler enforces.
    pub enforced: u32,
    /// Limits that the scheduler has rejected, because too many cgroups have a limit.
    pub rejected: u64,
    /// Cgroup of the last rejected limit; 0: there is none.
    pub rejected_cgroup: u64,
}

impl QuotaCounts {
    /// Reads the counts of a running scheduler.
    ///
    /// # Errors
    /// The map does not exist, has another layout, or cannot be read.
    pub fn read(ids: &MapIds) -> Result<Self, ScxError> {
        Ok(Self::of(&object::get(&by_id(ids.limits, LIMITS, BYTES)?)?))
    }

    fn of(bytes: &[u8]) -> Self {
        let long: Vec<u64> = words(bytes).collect();
        Self {
            enforced: long[2] as u32,
            rejected: long[3],
            rejected_cgroup: long[4],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fields;

    #[test]
    fn counts_match_the_fields_by_name() {
        let fields = fields("limit_table");
        assert_eq!(fields.bytes(), BYTES);
        let value = fields.filled(|name| match name {
            "used" => 7,
            "rejected" => 8,
            "rejected_cgroup" => 9,
            _ => 1,
        });
        let counts = QuotaCounts::of(&value);
        assert_eq!((counts.enforced, counts.rejected), (7, 8));
        assert_eq!(counts.rejected_cgroup, 9);
    }
}
