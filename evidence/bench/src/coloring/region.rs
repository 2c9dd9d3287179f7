// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of this machine that contains task structures, one per 8 KiB block, and the access of the
//! scheduler (`usher_coloring::kernel`) to it.
//!
//! A task is identified by the index of the 32-bit word at which its structure begins; the pointers
//! of the original machine also had 32 bits. The words are atomics, so that several threads may
//! read them at once. A relaxed atomic load compiles to an ordinary load.

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
/// Index of the list head: in the first block, which has no task, on a cache line of its own.
const HEAD: u32 = 16;

/// The kind of pages of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// Transparent huge pages requested, as the kernel's own memory has them
    Huge,
    /// 4 KiB pages, huge pages forbidden
    Small,
}

impl Pages {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Huge => "huge pages",
            Self::Small => "4 KiB pages",
        }
    }
}

/// A new mapping with a block for each structure and one more.
#[derive(Debug)]
pub struct Region {
    mapped: NonNull<c_void>,
    mapped_bytes: usize,
    /// The first block.
    words: NonNull<AtomicU32>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value, and is only accessed as atomics.
unsafe impl Send for Region {}
// SAFETY: the memory is used as atomics alone, which several threads may use at the same time.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region, and touches every page.
    pub fn new(structures: usize, pages: Pages) -> Result<Self> {
        let bytes = ((structures + 1) * BLOCK_BYTES).next_multiple_of(HUGE_BYTES);
        ensure!(
            bytes / 4 <= u32::MAX as usize,
            "{structures} structures do not fit into the memory of the test"
        );
        let mapped_bytes = bytes + HUGE_BYTES;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a mapping of its own, at an address of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(null_mut(), mapped_bytes, protection, flags) };
        let mapped = mapped.with_context(|| format!("mapping {mapped_bytes} bytes"))?;
        let mapped = NonNull::new(mapped).context("the kernel mapped the memory at address 0")?;
        let lead = mapped.addr().get().next_multiple_of(HUGE_BYTES) - mapped.addr().get();
        // SAFETY: the lead is less than a huge page, which was mapped in addition.
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
        // SAFETY: the range is this region's, and the advice changes no contents.
        let advised = unsafe { madvise(words.as_ptr().cast(), bytes, advice) };
        // A kernel without huge pages maps small pages; `huge_bytes` measures that.
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

    /// All its words.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: mapped, zeroed by the kernel and aligned; the mapping lives until `self` is
        // dropped; atomics may be shared.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.bytes / 4) }
    }

    /// Bytes of the region in huge pages, according to `/proc/self/smaps`.
    pub fn huge_bytes(&self, proc: &Path) -> Result<u64> {
        let path = proc.join("self/smaps");
        let smaps = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        Ok(huge_bytes(&smaps, self.words.addr().get() as u64))
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Positions of structures with these colours, one per block, in the order of the blocks.
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
        // SAFETY: mapped by `new`, and no reference outlives `self`.
        let unmapped = unsafe { munmap(self.mapped.as_ptr(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// `AnonHugePages` of the mapping that holds an address.
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

/// The range of a mapping's first line.
fn range_of(line: &str) -> Option<std::ops::Range<u64>> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(hex(from)?..hex(to)?)
}

/// The scheduler's view: structures in a region, and the list of all.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    words: &'a [AtomicU32],
    tasks: &'a [u32],
}

impl<'a> View<'a> {
    /// Structures that stand there.
    pub fn new(region: &'a Region, tasks: &'a [u32]) -> Self {
        Self {
            words: region.words(),
            tasks,
        }
    }

    /// Writes new structures and enqueues all, in random order and with a random last CPU.
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

/// The walk as a separate function, which cachegrind finds by its name.
#[inline(never)]
pub fn walk_queue(view: &mut View<'_>, cpu: u32, space: u32, so_far: WalkResult) -> WalkResult {
    kernel::walk(view, cpu, space, so_far)
}

/// The numbers from 0 to n - 1 in random order.
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
