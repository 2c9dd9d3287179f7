// SPDX-License-Identifier: MIT OR Apache-2.0
//! Emulates a slow disk with one head: a FUSE file with its data in a backing file. Each request
//! takes the time that the seek, the rotation and the transfer would take on the disk.
//!
//! Time of a request: if the head must move, 0.6 ms + 11.4 ms x (distance / size of the disk)^0.5 +
//! 4.17 ms for half a rotation; plus the transfer at 60 MB/s. The times are those of a 7200 rpm
//! disk at the time of paper 2, divided by the option `--faster` (default: 4).
//!
//! Requests are served one at a time in order of arrival. An I/O scheduler, or a program that sends
//! fewer requests, can therefore only reduce the number and length of seeks.
//!
//! The kernel's own slow devices (`dm-delay`, `null_blk`, `scsi_debug`) cannot replace this disk:
//! their delay does not depend on the position of the previous request, so that neither the order
//! of requests nor a second program changes the speed of a program.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use fuser::{Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo, LockOwner, OpenFlags};
use fuser::{ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags};

const TTL: Duration = Duration::from_secs(3600);
const FILE: INodeNo = INodeNo(2);
/// Name of the slow file in the mount directory.
pub const NAME: &str = "disk";

/// Arguments of `load slow-disk`.
#[derive(Debug, Clone, clap::Args)]
pub struct SlowArgs {
    /// Use the contents of this file
    #[arg(long)]
    pub backing: PathBuf,
    /// Provide the slow file as `disk` in this directory
    #[arg(long)]
    pub mount: PathBuf,
    /// Emulate a disk that is this many times faster than a disk with 7200 rpm
    #[arg(long, default_value_t = 4.0)]
    pub faster: f64,
}

/// Model of the duration of requests.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    bytes: u64,
    faster: f64,
    at: u64,
}

impl Head {
    /// Returns a disk of `bytes` bytes with its head at offset 0.
    pub fn new(bytes: u64, faster: f64) -> Self {
        Self {
            bytes,
            faster,
            at: 0,
        }
    }

    /// Moves the head to the start of a request and then to its end. Returns the duration of the
    /// request.
    pub fn serve(&mut self, offset: u64, length: u64) -> Duration {
        let distance = self.at.abs_diff(offset) as f64 / self.bytes.max(1) as f64;
        self.at = offset + length;
        // The seek time is 0.6 ms between neighbouring tracks and grows with the square root of the
        // distance, up to 12 ms. The third term is half of a rotation of 8.3 ms.
        let seek_ms = if distance > 0.0 {
            0.6 + 11.4 * distance.sqrt() + 4.17
        } else {
            0.0
        };
        let transfer_ms = length as f64 / 60e6 * 1e3;
        Duration::from_secs_f64((seek_ms + transfer_ms) / 1e3 / self.faster)
    }
}

struct Slow {
    backing: File,
    bytes: u64,
    head: Mutex<Head>,
}

/// Serves requests until the file system is unmounted.
pub fn run(args: &SlowArgs) -> Result<()> {
    let backing = File::options().read(true).write(true).open(&args.backing);
    let backing = backing.with_context(|| format!("opening {}", args.backing.display()))?;
    let bytes = backing.metadata()?.len();
    let slow = Slow {
        backing,
        bytes,
        head: Mutex::new(Head::new(bytes, args.faster)),
    };
    let mut config = fuser::Config::default();
    config
        .mount_options
        .push(fuser::MountOption::FSName("usher-bench-slow".to_owned()));
    fuser::mount(slow, &args.mount, &config)
        .with_context(|| format!("mounting {}", args.mount.display()))
}

impl Slow {
    fn wait(&self, offset: u64, length: u64) {
        // The lock is held during the sleep, so that requests are served one at a time.
        if let Ok(mut head) = self.head.lock() {
            let takes = head.serve(offset, length);
            std::thread::sleep(takes);
        }
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let root = inode == INodeNo::ROOT;
        FileAttr {
            ino: inode,
            size: if root { 0 } else { self.bytes },
            blocks: if root { 0 } else { self.bytes / 512 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if root {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: if root { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Slow {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match parent == INodeNo::ROOT && name == OsStr::new(NAME) {
            true => reply.entry(&TTL, &self.attributes(FILE), fuser::Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), fuser::FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size).min(self.bytes.saturating_sub(offset));
        self.wait(offset, length);
        let mut buffer = vec![0; length as usize];
        match self.backing.read_exact_at(&mut buffer, offset) {
            Ok(()) => reply.data(&buffer),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.wait(offset, data.len() as u64);
        match self.backing.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: fuser::ReplyEmpty) {
        reply.ok();
    }

    fn flush(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_need_not_move_only_transfers() {
        let mut head = Head::new(1 << 30, 1.0);
        assert_eq!(head.serve(0, 60_000), Duration::from_millis(1));
        assert_eq!(head.serve(60_000, 60_000), Duration::from_millis(1));
    }

    #[test]
    fn far_takes_longer_than_near_and_all_takes_longer_than_nothing() {
        let near = Head::new(1 << 30, 1.0).serve(1 << 20, 4096);
        let far = Head::new(1 << 30, 1.0).serve(1 << 29, 4096);
        assert!(near < far);
        assert!(far < Duration::from_millis(17));
        assert!(Head::new(1 << 30, 4.0).serve(1 << 29, 4096) * 4 < far + Duration::from_micros(1));
    }
}
