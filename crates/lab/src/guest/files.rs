// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts the host's files in the guest: read-only, except for writable directories and scratch
//! directories.
//!
//! 1. Open handles of the writable directories, before other mounts hide them.
//! 2. Make the root, which is the host's root, read-only.
//! 3. Mount empty file systems in memory at `/run` and `/boot`, and write the kernel's
//!    configuration to `/boot`.
//! 4. Mount an overlay at each scratch directory: reads return the host's files, and writes go to
//!    memory and do not reach the host.
//! 5. Mount the writable directories from their handles at their former paths.
//!
//! The first failed step refuses the job, and the guest then ends. Writes to memory are limited by
//! the guest's memory, and are lost at its end.

use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{self, MountFlags, MoveMountFlags, OpenTreeFlags};

use super::machine;
use super::refusal::Refusal;
use crate::job::GuestJob;

/// Flag of `finit_module` for a compressed file.
const COMPRESSED: i32 = 4;
/// The directory, in memory, with the writes to scratch directories.
const LAYERS: &str = "/run/usher-lab";

/// Mounts the host's files with the writable and the scratch directories of the job.
pub(super) fn arrange(job: &GuestJob) -> Result<(), Refusal> {
    let held = job
        .writable
        .iter()
        .map(|dir| Ok((dir.as_path(), hold(dir)?)));
    let held = held.collect::<Result<Vec<_>, Refusal>>()?;
    let config = fs::read(&job.config)
        .map_err(|why| Refusal::because(format!("reading {}", job.config.display()), why))?;
    load(job.overlay.as_deref())?;
    mount::mount_remount("/", MountFlags::BIND | MountFlags::RDONLY, "")
        .map_err(|why| Refusal::because("making the host's files read-only", why))?;
    for place in ["/run", "/boot"] {
        machine::mount("tmpfs", place, "tmpfs", "mode=755")?;
    }
    let config_path = format!("/boot/config-{}", machine::release());
    fs::write(&config_path, config)
        .map_err(|why| Refusal::because(format!("writing {config_path}"), why))?;
    for (number, dir) in job.scratch.iter().enumerate() {
        lay_over(dir, &Path::new(LAYERS).join(number.to_string()))?;
    }
    held.into_iter()
        .try_for_each(|(dir, tree)| restore_tree(dir, &tree))
}

/// Opens a handle of a directory. The handle stays valid if later mounts hide the directory.
fn hold(dir: &Path) -> Result<OwnedFd, Refusal> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    mount::open_tree(CWD, dir, flags)
        .map_err(|why| Refusal::because(format!("opening {}", dir.display()), why))
}

fn restore_tree(dir: &Path, tree: &OwnedFd) -> Result<(), Refusal> {
    let doing = || format!("making {} writable", dir.display());
    if !dir.exists() {
        fs::create_dir_all(dir).map_err(|why| Refusal::because(doing(), why))?;
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    mount::move_mount(tree, "", CWD, dir, flags).map_err(|why| Refusal::because(doing(), why))
}

/// Loads the kernel module of overlays; `None` means that the kernel has no such module, because
/// overlays are built in.
fn load(module: Option<&Path>) -> Result<(), Refusal> {
    let Some(path) = module else { return Ok(()) };
    let doing = || format!("loading {}", path.display());
    let file = File::open(path).map_err(|why| Refusal::because(doing(), why))?;
    let plain = path.extension().is_some_and(|extension| extension == "ko");
    let flags = if plain { 0 } else { COMPRESSED };
    match rustix::system::finit_module(&file, c"", flags) {
        Err(why) if why != Errno::EXIST => Err(Refusal::because(doing(), why)),
        _ => Ok(()),
    }
}

/// Mounts an overlay at a directory, with writes to memory at `layer`.
fn lay_over(dir: &Path, layer: &Path) -> Result<(), Refusal> {
    let doing = || format!("mounting an overlay in memory over {}", dir.display());
    let prepare = || {
        let [upper, work] = ["upper", "work"].map(|part| layer.join(part));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        // The directory for writes gets the owner and permissions of the host's directory, because
        // the overlay shows them.
        let below = fs::metadata(dir)?;
        std::os::unix::fs::chown(&upper, Some(below.uid()), Some(below.gid()))?;
        fs::set_permissions(&upper, Permissions::from_mode(below.mode()))?;
        Ok(format!(
            "lowerdir={},upperdir={},workdir={}",
            dir.display(),
            upper.display(),
            work.display()
        ))
    };
    let layers = prepare().map_err(|why: std::io::Error| Refusal::because(doing(), why))?;
    machine::mount("overlay", dir, "overlay", &layers)
}
