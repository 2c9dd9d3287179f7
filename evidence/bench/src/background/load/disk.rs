// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load generator `load disk`, the disk benchmark of paper 2: reads 1 byte of each 8 KiB of a file,
//! which is dropped from the page cache first. With `--direct`, the generator bypasses the page
//! cache and reads 4 KiB of each 8 KiB. A unit of work is one read.
//!
//! At the end of the file, the generator drops the file from the page cache again and begins at the
//! start. A file shorter than 8 KiB, or a read error, ends the generator with an error.
//!
//! `fio` (3.33, `--rw=read:8191 --bs=1`) reads at the same speed, but cannot replace this generator:
//!
//! - `fio` drops the file from the page cache once, at its start. All passes after the first read
//!   from the page cache: two passes over 512 MiB (`--loops=2`) read 512 MiB from the disk.
//! - The start of `fio` takes 0.3 to 1 s, within a measured time of 1 to 5 s.
//! - `fio` writes its log of requests at its end. The log is lost if a frozen `fio` is killed, and
//!   has times in ms; half of the measured reactions of disk programs take 0.02 ms or less.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::duty_cycle::{drive, print, stop_flag};
use super::limits::LoadLimits;

/// Distance between two reads, in bytes.
pub const STRIDE: u64 = 8 << 10;
const DIRECT_BYTES: usize = 4 << 10;

/// Arguments of `load disk`.
#[derive(Debug, Clone, clap::Args)]
pub struct DiskArgs {
    /// Amount of work; a unit is a block of 8 KiB
    #[command(flatten)]
    pub limits: LoadLimits,
    /// Read this file repeatedly
    #[arg(long)]
    pub file: PathBuf,
    /// Bypass the page cache and read 4 KiB at a time, so that each read is one request
    #[arg(long)]
    pub direct: bool,
}

/// Creates a file of `mib` MiB with allocated blocks, unless the file exists.
pub fn make_file(path: &Path, mib: u64) -> Result<()> {
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() == mib << 20) {
        return Ok(());
    }
    let make = || -> Result<()> {
        let mut file = File::create(path)?;
        let mut rng = oorandom::Rand64::new(u128::from(mib));
        let block: Vec<u8> = (0..1 << 17)
            .flat_map(|_| rng.rand_u64().to_le_bytes())
            .collect();
        (0..mib).try_for_each(|_| file.write_all(&block))?;
        Ok(file.sync_all()?)
    };
    make().with_context(|| format!("creating the file {} of {mib} MiB", path.display()))
}

/// Drops a file or block device from the page cache.
pub fn forget(file: &File) -> Result<()> {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Runs the load generator.
pub fn run(args: &DiskArgs) -> Result<()> {
    let mut reader = Reader::open(args)?;
    print(&drive(&args.limits, &*stop_flag()?, || {
        reader.step().map(Some)
    })?)
}

struct Reader {
    file: File,
    blocks: u64,
    at: u64,
    /// Direct reads need an aligned address. The buffer has twice the needed size and therefore
    /// contains an aligned address.
    buffer: Vec<u8>,
    bytes: usize,
}

impl Reader {
    fn open(args: &DiskArgs) -> Result<Self> {
        let flags = if args.direct {
            rustix::fs::OFlags::DIRECT.bits() as i32
        } else {
            0
        };
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&args.file)
            .with_context(|| format!("opening {}", args.file.display()))?;
        let blocks = file.metadata()?.len() / STRIDE;
        ensure!(
            blocks > 0,
            "the file {} is shorter than 8 KiB",
            args.file.display()
        );
        forget(&file)?;
        Ok(Self {
            file,
            blocks,
            at: 0,
            buffer: vec![0; 2 * DIRECT_BYTES],
            bytes: if args.direct { DIRECT_BYTES } else { 1 },
        })
    }

    fn step(&mut self) -> Result<u64> {
        let skip = self.buffer.as_ptr().align_offset(DIRECT_BYTES);
        let buffer = &mut self.buffer[skip..skip + self.bytes];
        self.file.read_exact_at(buffer, self.at * STRIDE)?;
        self.at += 1;
        if self.at == self.blocks {
            self.at = 0;
            forget(&self.file)?;
        }
        Ok(1)
    }
}
