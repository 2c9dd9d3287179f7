// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps memory for task structures, one structure per block of 8 KiB, and lets the scheduler code
//! (`usher_coloring::kernel`) read and write the fields of the structures.
//!
//! A region has one block more than there are structures: block 0 contains the list head. Its start
//! is aligned to 2 MiB. The number of a task is the index of the 32-bit word at which its structure
//! begins; on the paper's machine, pointers also had 32 bits. The words are atomic, so that several
//! threads can access them concurrently. A relaxed atomic load compiles to an ordinary load and
//! adds no cost.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use oorandom::Rand64;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use serde::{Deserialize, Serialize};
use usher_coloring::kernel::{self, BLOCK_BYTES, Field, Structures, WalkResult};
use usher_coloring::machine::Colors;
use usher_coloring::workload::Workload;

/// Alignment of regions: a huge page.
const HUGE_BYTES: usize = 2 << 20;
/// Word index of the list head. The head is in the first block, which contains no task structure,
/// and has a cache line of its own.
const HEAD: u32 = 16;

/// The kind of pages of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// Transparent huge pages requested, because the kernel maps its own memory with huge pages
    Huge,
    /// 4 KiB pages, huge pages forbidden
    Small,
}

impl Pages {
    /// Name of the pages in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Huge => "huge pages",
            Self::Small => "4 KiB pages",
        }
    }
}

/// A memory mapping with a block for the list head and a block for each structure.
#[derive(Debug)]
pub struct Region {
    mapped: NonNull<c_void>,
    mapped_bytes: usize,
    /// Start of the first block.
    words: NonNull<AtomicU32>,
    bytes: usize,
}

// SAFETY: only this value owns the mapping, and all accesses to the memory are atomic; a move to
// another thread therefore causes no data race.
unsafe impl Send for Region {}
// SAFETY: all accesses to the memory are atomic, and several threads may access atomics at the same
// time.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region, and writes to each page so that the kernel allocates the page.
    pub fn new(structures: usize, pages: Pages) -> Result<Self> {
        let bytes = ((structures + 1) * BLOCK_BYTES).next_multiple_of(HUGE_BYTES);
        ensure!(
            bytes / 4 <= u32::MAX as usize,
            "{structures} structures do not fit into the memory of the test"
        );
        let mapped_bytes = bytes + HUGE_BYTES;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: an anonymous mapping at an address that the kernel selects overlaps no existing
        // memory.
        let mapped = unsafe { mmap_anonymous(null_mut(), mapped_bytes, protection, flags) };
        let mapped = mapped.with_context(|| format!("mapping {mapped_bytes} bytes"))?;
        let mapped = NonNull::new(mapped).context("the kernel mapped the memory at address 0")?;
        let lead = mapped.addr().get().next_multiple_of(HUGE_BYTES) - mapped.addr().get();
        // SAFETY: `lead` is less than one huge page, and the mapping is one huge page longer than
        // the region; the result is within the mapping.
        let words: NonNull<AtomicU32> = unsafe { mapped.byte_add(lead) }.cast();
        let region = Self {
            mapped,
            mapped_bytes,
            words,
            bytes,
        };
        let advice = match pages {
            Pages::Huge => Advice::LinuxHugepage,
            Pages::Small => Advice::LinuxNoHugepage,
        };
        // SAFETY: the range is within the mapping of this region, and the advice does not change
        // the contents of the memory.
        let advised = unsafe { madvise(words.as_ptr().cast(), bytes, advice) };
        // On a kernel without huge pages, the advice fails and the region has small pages.
        // `huge_bytes` returns the actual size in huge pages.
        let _ = advised;
        region
            .words()
            .iter()
            .step_by(1024)
            .for_each(|word| word.store(1, Relaxed));
        region
            .words()
            .iter()
            .step_by(1024)
            .for_each(|word| word.store(0, Relaxed));
        Ok(region)
    }

    /// All words of the region.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: `words` points to `bytes` bytes that are mapped, zeroed by the kernel and
        // aligned. The mapping exists until `self` is dropped. Several references to atomics may
        // exist.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.bytes / 4) }
    }

    /// Returns the number of bytes of the region that are in huge pages, according to `self/smaps`
    /// below `proc`.
    pub fn huge_bytes(&self, proc: &Path) -> Result<u64> {
        let path = proc.join("self/smaps");
        let smaps = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        Ok(huge_bytes(&smaps, self.words.addr().get() as u64))
    }

    /// Size of the region in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the word index of each structure, one structure per block, in the order of the
    /// blocks. `colors` determines the offset in the block.
    pub fn places(&self, structures: usize, colors: Colors) -> Result<Vec<u32>> {
        let place = colors.placer()?;
        let first = self.words.addr().get();
        let of = |number: usize| {
            let base = first + number * BLOCK_BYTES;
            ((place(base as u64) as usize - first) / 4) as u32
        };
        Ok((1..=structures).map(of).collect())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this range, and no reference to the memory outlives `self`.
        let unmapped = unsafe { munmap(self.mapped.as_ptr(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Returns the value `AnonHugePages` in bytes of the mapping that contains an address; 0 if there
/// is none.
fn huge_bytes(smaps: &str, address: u64) -> u64 {
    let mut inside = false;
    for line in smaps.lines() {
        if let Some(range) = range_of(line) {
            inside = range.contains(&address);
        } else if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
            let kib = rest.trim().strip_suffix(" kB").unwrap_or("");
            return kib.trim().parse::<u64>().unwrap_or(0) * 1024;
        }
    }
    0
}

/// Parses the address range at the beginning of a mapping's first line.
fn range_of(line: &str) -> Option<std::ops::Range<u64>> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(hex(from)?..hex(to)?)
}

/// Access of the scheduler code to the structures in a region and to the list of runnable tasks.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    words: &'a [AtomicU32],
    tasks: &'a [u32],
}

impl<'a> View<'a> {
    /// Returns a view of the structures at the word indices `tasks`.
    pub fn new(region: &'a Region, tasks: &'a [u32]) -> Self {
        Self {
            words: region.words(),
            tasks,
        }
    }

    /// Writes new structures with a random last CPU, and enqueues all of them in random order.
    pub fn fill(&mut self, workload: Option<&dyn Workload>, cpus: usize, seed: u64) {
        kernel::empty(self);
        let mut random = Rand64::new(u128::from(seed));
        for task in shuffled(self.tasks.len(), &mut random) {
            let space = workload.map_or(1, |w| w.address_space(task));
            let cpu = random.rand_range(0..cpus as u64) as u32;
            kernel::create(self, self.tasks[task], space, cpu);
            kernel::add(self, self.tasks[task]);
        }
    }
}

impl Structures for View<'_> {
    #[inline(always)]
    fn head(&self) -> u32 {
        HEAD
    }

    fn task(&self, place: usize) -> Option<u32> {
        self.tasks.get(place).copied()
    }

    #[inline(always)]
    fn read(&mut self, task: u32, field: Field) -> u32 {
        self.words[task as usize + field.offset_bytes() as usize / 4].load(Relaxed)
    }

    #[inline(always)]
    fn write(&mut self, task: u32, field: Field, value: u32) {
        self.words[task as usize + field.offset_bytes() as usize / 4].store(value, Relaxed);
    }
}

/// Walks the run queue. The walk is a separate function, because cachegrind counts misses by the
/// names of functions.
#[inline(never)]
pub fn walk_queue(view: &mut View<'_>, cpu: u32, space: u32, partial: WalkResult) -> WalkResult {
    kernel::walk(view, cpu, space, partial)
}

/// Returns the numbers from 0 to n - 1 in random order.
fn shuffled(n: usize, random: &mut Rand64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for at in (1..n).rev() {
        order.swap(at, random.rand_range(0..at as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_structure_is_walked_once_wherever_it_stands() {
        let region = Region::new(300, Pages::Small).unwrap();
        assert!(region.bytes() >= 301 * BLOCK_BYTES);
        for colors in [Colors::Plain, Colors::MODULO, Colors::DEFAULT] {
            let places = region.places(300, colors).unwrap();
            let mut view = View::new(&region, &places);
            view.fill(None, 1, 1);
            let walked = walk_queue(&mut view, 0, 1, WalkResult::NONE);
            assert_eq!(walked.visits, 300, "{colors:?}");
            let block = |place: u32| place as usize * 4 / BLOCK_BYTES;
            assert!(
                places
                    .iter()
                    .enumerate()
                    .all(|(n, &place)| block(place) == n + 1)
            );
        }
    }

    #[test]
    fn a_shuffle_has_everything_once() {
        let mut order = shuffled(100, &mut Rand64::new(3));
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn huge_pages_are_those_of_the_right_mapping() {
        let smaps = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
AnonHugePages:         0 kB
";
        assert_eq!(huge_bytes(smaps, 0x7f00_0020_0000), 2 << 20);
        assert_eq!(huge_bytes(smaps, 0x7f00_0040_0000), 0);
        assert_eq!(huge_bytes(smaps, 0x1000), 0);
    }
}
