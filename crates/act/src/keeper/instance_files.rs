// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names, reads and writes the small files in an instance's directory by which the keeper and other
//! processes of Usher communicate.
//!
//! - `keeper` contains the keeper's pid and start time (in clock ticks since boot), at most 64
//!   bytes. The file is replaced by `rename`; a reader finds either the old or the new content. A
//!   missing, larger or malformed file counts as no keeper.
//! - `ending` exists if the owner has begun an orderly exit. The file's content has no meaning.

use std::fs;
use std::path::Path;
use std::time::Instant;

use usher_model::ProcessId;

use crate::error::{ActError, runtime_error};
use crate::files;
use crate::procs::Procs;

/// The file in the instance's directory to which a keeper writes its pid and start time.
pub(super) const FILE: &str = "keeper";
/// The file in the instance's directory that the owner creates when it begins an orderly exit. If
/// this file exists, the keeper does not restart the owner, even if changes remain to be undone.
pub(crate) const ENDING: &str = "ending";
/// Upper limit of the size of the file with the keeper's pid and start time, in bytes.
const ID_BYTES_MAX: u64 = 64;

/// Returns the keeper that was recorded last in an instance's directory.
pub(crate) fn of_instance(instance_dir: &Path) -> Option<ProcessId> {
    let bytes = files::read_own(&instance_dir.join(FILE), ID_BYTES_MAX).ok()?;
    parse_id(std::str::from_utf8(&bytes).ok()?)
}

/// Returns whether a running keeper other than `own` undoes the changes of an instance after the
/// death of its owner. A stopped keeper does not. The call waits until `deadline` for the end of a
/// keeper that has begun to end.
pub(crate) fn undoes(
    procs: &Procs,
    own: Option<ProcessId>,
    instance_dir: &Path,
    deadline: Instant,
) -> bool {
    of_instance(instance_dir).is_some_and(|keeper| {
        own != Some(keeper) && procs.can_run(keeper) && procs.stays_alive(keeper, deadline)
    })
}

pub(super) fn parse_id(text: &str) -> Option<ProcessId> {
    let (pid, start) = text.trim().split_once(' ')?;
    Some(ProcessId {
        pid: pid.parse().ok()?,
        start_ticks: start.parse().ok()?,
    })
}

/// Writes the keeper's pid and start time to the file that launchers read.
pub(super) fn write_id(instance_dir: &Path, own: ProcessId) -> Result<(), ActError> {
    let path = instance_dir.join(FILE);
    let fresh = instance_dir.join(format!("{FILE}.{}", own.pid));
    fs::write(&fresh, format!("{} {}\n", own.pid, own.start_ticks))
        .and_then(|()| fs::rename(&fresh, &path))
        .map_err(runtime_error("writing", path))
}
