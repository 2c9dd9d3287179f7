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

use usher_model::ProcessId;

use crate::error::{ActError, runtime_error};
use crate::files;

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
