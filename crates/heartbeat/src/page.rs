// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates, reads and removes heartbeat pages, for the process that observes a program.
//!
//! The reader never maps the page. The program may truncate the file at any time, and an access to
//! a truncated mapping would raise SIGBUS. The reader uses `pread`, which only returns fewer bytes.
//! A read may be torn, which means that it mixes bytes from before and after a write of the
//! program:
//!
//! - The work counter is read until two consecutive reads agree in the upper half and do not
//!   decrease, with at most 1 + 4 reads. After five reads that disagree, the last one is used.
//! - All used slots are read twice. A slot is accepted if its sequence number is even and equal in
//!   both reads. For any other slot, the last complete record is used.
//!
//! A full read takes three to eight `pread` calls: one of the header, two to five of the work
//! counter, and, unless no slot is used, two of all used slots, of at most 64 KiB each. A page that
//! is shorter than a read, or has another magic number or version, is an error. The length of the
//! file is checked only when the page is opened.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{PageError, PageFault};
use crate::layout::*;
use crate::slot::{SlotState, now_ns};

/// A heartbeat page that is open for reading.
#[derive(Debug)]
pub struct Page {
    path: PathBuf,
    file: File,
    /// The last complete record of each slot, which replaces a torn read of the slot.
    slots: Vec<SlotReading>,
    buffers: [Vec<u8>; 2],
}

/// The content of a page at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct PageReading {
    /// Units of work done so far; 0 if the program reports no work.
    pub work: u64,
    /// Units per second that the program aims at, if specified.
    pub target_per_s: Option<f64>,
    /// What a unit is; empty if not specified.
    pub unit: String,
    /// A label for display; empty if not specified.
    pub label: String,
    /// Sums over the thread slots; `None` if no slot was ever claimed.
    pub threads: Option<ThreadTotals>,
}

/// The sums of the thread slots of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadTotals {
    /// Threads that own a slot now.
    pub running: u32,
    /// Number of these threads that wait now.
    pub waiting: u32,
    /// Threads that found no free slot. The sums do not contain the times of these threads.
    pub refused: u32,
    /// Wall nanoseconds of useful work, running intervals included.
    pub useful_ns: u64,
    /// Wall nanoseconds of all threads together, running intervals included.
    pub elapsed_ns: u64,
    /// CPU nanoseconds of useful work, finished intervals only.
    pub useful_cpu_ns: u64,
    /// CPU nanoseconds used while waiting, finished intervals only.
    pub waiting_cpu_ns: u64,
    /// Changes of state, to estimate the cost of accounting.
    pub events: u64,
}

impl ThreadTotals {
    /// Returns the useful share of the threads' time, 0..1; `None` if no time was recorded. If
    /// every thread has a core of its own, the share is the parallel efficiency of TALP.
    pub fn efficiency(&self) -> Option<f64> {
        (self.elapsed_ns > 0).then(|| self.useful_ns as f64 / self.elapsed_ns as f64)
    }
}

/// The content of a thread slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotReading {
    /// State of the slot's owner.
    pub state: SlotState,
    /// `CLOCK_MONOTONIC` nanoseconds at which the state began.
    pub since_ns: u64,
    /// Useful wall nanoseconds of finished intervals.
    pub useful_ns: u64,
    /// Waiting wall nanoseconds of finished intervals.
    pub waiting_ns: u64,
    /// Useful CPU nanoseconds of finished intervals.
    pub useful_cpu_ns: u64,
    /// CPU nanoseconds used while waiting, of finished intervals.
    pub waiting_cpu_ns: u64,
    /// Number of changes of state.
    pub events: u64,
    /// Thread id of the last owner.
    pub tid: u32,
}

const UNUSED_SLOT: SlotReading = SlotReading {
    state: SlotState::Free,
    since_ns: 0,
    useful_ns: 0,
    waiting_ns: 0,
    useful_cpu_ns: 0,
    waiting_cpu_ns: 0,
    events: 0,
    tid: 0,
};

/// Upper limit of repeated reads of the work counter, if reads are torn.
const ATTEMPTS: usize = 4;

impl Page {
    /// Creates a page at a path that must not exist, readable and writable by its owner only. All
    /// memory of the file is reserved, because a beat would otherwise fail on a full file system.
    /// The file stays when this value is dropped; [`Page::remove`] deletes it.
    ///
    /// # Errors
    /// If the path exists, or the directory or file system does not permit the file. After an
    /// error, no file is left.
    pub fn create(path: &Path) -> Result<Self, PageError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| PageError::io(path, "creating", e))?;
        if let Err(error) = initialise(&file) {
            // The result of the removal is ignored, because the function returns the first error.
            let _ = std::fs::remove_file(path);
            return Err(PageError::io(path, "reserving memory for", error));
        }
        Ok(Self::with(path, file))
    }

    /// Opens an existing page.
    ///
    /// # Errors
    /// If the page cannot be opened, or is not a heartbeat page of this version.
    pub fn open(path: &Path) -> Result<Self, PageError> {
        let file = open_regular(path)?;
        check_header(&file, path)?;
        Ok(Self::with(path, file))
    }

    /// Returns the open file. The page is never opened again. Therefore a check of this file stays
    /// valid while the page is read.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn with(path: &Path, file: File) -> Self {
        Self {
            path: path.to_owned(),
            file,
            slots: Vec::new(),
            buffers: [Vec::new(), Vec::new()],
        }
    }

    /// Returns the path of the page's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Deletes the file. Programs that have mapped the file continue to count, without effect.
    ///
    /// # Errors
    /// If the file cannot be deleted.
    pub fn remove(self) -> Result<(), PageError> {
        std::fs::remove_file(&self.path).map_err(|e| PageError::io(&self.path, "removing", e))
    }

    /// Reads the whole page.
    ///
    /// # Errors
    /// If the page was truncated or overwritten, or cannot be read.
    pub fn read(&mut self) -> Result<PageReading, PageError> {
        let header = self.header()?;
        let requested = u32_at(&header, SLOTS_REQUESTED_AT);
        let target = f64::from_bits(u64_at(&header, TARGET_AT));
        Ok(PageReading {
            work: self.work()?,
            target_per_s: (target.is_finite() && target > 0.0).then_some(target),
            unit: text_at(&header, UNIT_AT, UNIT_BYTES),
            label: text_at(&header, LABEL_AT, LABEL_BYTES),
            threads: self.threads_from(requested)?,
        })
    }

    /// Reads only the work counter, with two to five small reads. After five reads that disagree,
    /// the last one is returned.
    ///
    /// # Errors
    /// If the page was truncated or cannot be read.
    pub fn work(&self) -> Result<u64, PageError> {
        let mut last = self.read_work()?;
        for _ in 0..ATTEMPTS {
            let next = self.read_work()?;
            // A torn read mixes old and new bytes. Its error can reach 2^32 only if the upper half
            // of the counter has changed.
            if next >> 32 == last >> 32 && next >= last {
                return Ok(next);
            }
            last = next;
        }
        Ok(last)
    }

    /// Reads only the thread slots; `None` if no slot was ever claimed.
    ///
    /// # Errors
    /// If the page was truncated or cannot be read.
    pub fn threads(&mut self) -> Result<Option<ThreadTotals>, PageError> {
        let mut requested = [0; 4];
        self.read_at(&mut requested, SLOTS_REQUESTED_AT)?;
        self.threads_from(u32::from_ne_bytes(requested))
    }

    fn header(&self) -> Result<Vec<u8>, PageError> {
        let mut header = vec![0; LABEL_AT + LABEL_BYTES];
        self.read_at(&mut header, 0)?;
        check_magic(&header, &self.path)?;
        Ok(header)
    }

    fn read_work(&self) -> Result<u64, PageError> {
        let mut work = [0; 8];
        self.read_at(&mut work, WORK_AT)?;
        Ok(u64::from_ne_bytes(work))
    }

    fn read_at(&self, into: &mut [u8], offset: usize) -> Result<(), PageError> {
        self.file
            .read_exact_at(into, offset as u64)
            .map_err(|e| self.read_error(e))
    }

    fn read_error(&self, error: io::Error) -> PageError {
        match (error.kind(), self.file.metadata()) {
            (io::ErrorKind::UnexpectedEof, Ok(meta)) => {
                PageError::new(&self.path, PageFault::Size(meta.len()))
            }
            _ => PageError::io(&self.path, "reading", error),
        }
    }

    fn threads_from(&mut self, requested: u32) -> Result<Option<ThreadTotals>, PageError> {
        let used = (requested as usize).min(SLOTS);
        if used == 0 {
            return Ok(None);
        }
        self.read_slots(used)?;
        let now_ns = now_ns();
        let mut sums = ThreadTotals {
            refused: requested.saturating_sub(SLOTS as u32),
            ..ThreadTotals::default()
        };
        for slot in &self.slots {
            sums.add(slot, now_ns);
        }
        Ok(Some(sums))
    }

    /// Updates `self.slots`. If the sequence of a slot is even and equal in two consecutive reads,
    /// the first read is complete.
    fn read_slots(&mut self, used: usize) -> Result<(), PageError> {
        let mut buffers = std::mem::take(&mut self.buffers);
        for buffer in &mut buffers {
            buffer.resize(used * SLOT_BYTES, 0);
            self.read_at(buffer, SLOTS_AT)?;
        }
        self.slots.resize(used, UNUSED_SLOT);
        let (first, second) = (&buffers[0], &buffers[1]);
        for (i, known) in self.slots.iter_mut().enumerate() {
            let range = i * SLOT_BYTES..(i + 1) * SLOT_BYTES;
            let (a, b) = (&first[range.clone()], &second[range]);
            let sequence = u32_at(a, SEQUENCE_AT);
            if sequence.is_multiple_of(2) && sequence == u32_at(b, SEQUENCE_AT) {
                *known = slot_from(a).unwrap_or(*known);
            }
        }
        self.buffers = buffers;
        Ok(())
    }
}

impl ThreadTotals {
    fn add(&mut self, slot: &SlotReading, now_ns: u64) {
        let open_ns = match slot.state {
            SlotState::Free => 0,
            _ => now_ns.saturating_sub(slot.since_ns),
        };
        let useful_open_ns = if slot.state == SlotState::Useful {
            open_ns
        } else {
            0
        };
        let all = [slot.useful_ns, slot.waiting_ns, open_ns];
        self.running += u32::from(slot.state != SlotState::Free);
        self.waiting += u32::from(slot.state == SlotState::Waiting);
        self.useful_ns = add(self.useful_ns, add(slot.useful_ns, useful_open_ns));
        self.elapsed_ns = all.into_iter().fold(self.elapsed_ns, add);
        self.useful_cpu_ns = add(self.useful_cpu_ns, slot.useful_cpu_ns);
        self.waiting_cpu_ns = add(self.waiting_cpu_ns, slot.waiting_cpu_ns);
        self.events = add(self.events, slot.events);
    }
}

/// Opens a file only if it is a regular file. The first open uses `O_PATH`, which has no effect on
/// a device or FIFO. After the check of the file type, the file is opened for reading through the
/// first descriptor.
fn open_regular(path: &Path) -> Result<File, PageError> {
    let failed = |error| PageError::io(path, "opening", error);
    let handle = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
        .open(path)
        .map_err(failed)?;
    if !handle.metadata().map_err(failed)?.is_file() {
        return Err(PageError::new(path, PageFault::NotAPage));
    }
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", handle.as_raw_fd()))
        .map_err(failed)
}

/// Adds without overflow: the program may write any number to the page.
fn add(a: u64, b: u64) -> u64 {
    a.saturating_add(b)
}

/// Reserves the memory of the file and writes the header, the magic number last.
fn initialise(file: &File) -> io::Result<()> {
    // SAFETY: `posix_fallocate` takes numbers and accesses no memory; the descriptor is open for
    // writing.
    let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, PAGE_BYTES as libc::off_t) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    for (offset, number) in [
        (VERSION_AT, VERSION),
        (SIZE_AT, PAGE_BYTES as u32),
        (SLOT_COUNT_AT, SLOTS as u32),
    ] {
        file.write_all_at(&number.to_ne_bytes(), offset as u64)?;
    }
    file.write_all_at(&MAGIC, 0)
}

/// Checks that a file is a page of this version.
pub(crate) fn check_header(file: &File, path: &Path) -> Result<(), PageError> {
    let size = file
        .metadata()
        .map_err(|e| PageError::io(path, "opening", e))?
        .len();
    let mut header = [0; VERSION_AT + 4];
    match file.read_exact_at(&mut header, 0) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(PageError::new(path, PageFault::NotAPage));
        }
        other => other.map_err(|e| PageError::io(path, "reading", e))?,
    }
    check_magic(&header, path)?;
    if size != PAGE_BYTES as u64 {
        return Err(PageError::new(path, PageFault::Size(size)));
    }
    Ok(())
}

fn check_magic(header: &[u8], path: &Path) -> Result<(), PageError> {
    if header[..MAGIC.len()] != MAGIC {
        return Err(PageError::new(path, PageFault::NotAPage));
    }
    match u32_at(header, VERSION_AT) {
        VERSION => Ok(()),
        other => Err(PageError::new(path, PageFault::Version(other))),
    }
}

fn slot_from(bytes: &[u8]) -> Option<SlotReading> {
    Some(SlotReading {
        state: SlotState::from_code(u32_at(bytes, STATE_AT))?,
        since_ns: u64_at(bytes, SINCE_AT),
        useful_ns: u64_at(bytes, USEFUL_AT),
        waiting_ns: u64_at(bytes, WAITING_AT),
        useful_cpu_ns: u64_at(bytes, USEFUL_CPU_AT),
        waiting_cpu_ns: u64_at(bytes, WAITING_CPU_AT),
        events: u64_at(bytes, EVENTS_AT),
        tid: u32_at(bytes, TID_AT),
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn text_at(bytes: &[u8], at: usize, length: usize) -> String {
    let text = &bytes[at..at + length];
    let end = text.iter().position(|&b| b == 0).unwrap_or(length);
    String::from_utf8_lossy(&text[..end]).into_owned()
}
