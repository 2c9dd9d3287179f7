// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions for traces, counters, and the orders and groupings that a runtime has found. A
//! structure for the caller is copied up to the size that the caller has set in its first field. A
//! program that was compiled with an older header therefore gets fewer fields, and a program with a
//! newer header gets zeros in the fields that this version does not know. A size below 80 or above
//! 4096 bytes is an error.
//!
//! Reading the counters takes time linear in the number of workers, and writing a trace linear in
//! the number of recorded tasks. A trace that cannot be written leaves an incomplete file. A text
//! is truncated to the buffer of the caller, and its whole length is returned.

use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::ptr;

use usher_tasks::{ColorBy, Counters, Grouping, Runtime, Trace};

use crate::error::{ErrorCode, Failure, boundary, boundary_or};
use crate::graph::GraphHandle;
use crate::options::SIZE_MAX;
use crate::runtime::{RuntimeHandle, enter};

/// `enum usher_tasks_format`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON for ui.perfetto.dev and `chrome://tracing`.
    Chrome = 0,
    /// A picture with tasks coloured by temporal group.
    SvgByT,
    /// A picture with tasks coloured by spatial group.
    SvgByS,
}

impl Format {
    /// All formats in order.
    pub const ALL: [Self; 3] = [Self::Chrome, Self::SvgByT, Self::SvgByS];

    fn write(self, trace: &Trace, to: impl Write) -> std::io::Result<()> {
        match self {
            Self::Chrome => trace.write_chrome(to),
            Self::SvgByT => trace.write_svg(ColorBy::T, to),
            Self::SvgByS => trace.write_svg(ColorBy::S, to),
        }
    }
}

/// `enum usher_tasks_grouping`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupingCode {
    /// The policy does not group tasks that have no groups.
    NoneRequested = 0,
    /// Tasks are grouped by time of registration.
    Time,
    /// Tasks are grouped by region of their data.
    Data,
    /// Tasks have no groups.
    None,
}

impl GroupingCode {
    /// All groupings in order.
    pub const ALL: [Self; 4] = [Self::NoneRequested, Self::Time, Self::Data, Self::None];
}

impl From<Option<Grouping>> for GroupingCode {
    fn from(grouping: Option<Grouping>) -> Self {
        match grouping {
            None => Self::NoneRequested,
            Some(Grouping::Time) => Self::Time,
            Some(Grouping::Data) => Self::Data,
            Some(Grouping::None) => Self::None,
        }
    }
}

/// `usher_tasks_counters`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Size of the caller's structure in bytes.
    pub size: usize,
    /// Tasks that the worker ran.
    pub tasks: u64,
    /// Chains of tasks stolen from workers of the same last-level cache.
    pub steals_llc: u64,
    /// Chains of tasks stolen from workers of the same package, but another last-level cache.
    pub steals_package: u64,
    /// Chains of tasks stolen from workers of other packages.
    pub steals_machine: u64,
    /// How often the worker took injected tasks.
    pub outside: u64,
    /// Tasks sent to the owners of their spatial groups.
    pub sent: u64,
    /// How often the worker became the owner of a spatial group that another worker owned.
    pub group_moves: u64,
    /// How often the worker went to sleep.
    pub sleeps: u64,
    /// Nanoseconds for which the worker slept.
    pub asleep_ns: u64,
}

/// Size of the structure in bytes in the first version of the library.
const COUNTERS_SIZE_MIN: usize = 80;

impl From<Counters> for WorkerCounters {
    fn from(counters: Counters) -> Self {
        let [steals_llc, steals_package, steals_machine] = counters.steals;
        Self {
            size: size_of::<Self>(),
            tasks: counters.tasks,
            steals_llc,
            steals_package,
            steals_machine,
            outside: counters.outside,
            sent: counters.sent,
            group_moves: counters.group_moves,
            sleeps: counters.sleeps,
            asleep_ns: counters.asleep_ns,
        }
    }
}

/// Starts a trace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_trace_start(
    runtime: *mut RuntimeHandle,
    tasks_per_worker: usize,
) -> c_int {
    let start = |this: &Runtime| Ok(this.start_trace(tasks_per_worker)?);
    // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
    boundary(|| unsafe { enter(runtime, start) })
}

/// Stops the trace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_trace_stop(runtime: *mut RuntimeHandle) -> c_int {
    let stop = |this: &Runtime| {
        this.stop_trace();
        Ok(())
    };
    // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
    boundary(|| unsafe { enter(runtime, stop) })
}

/// Writes the trace to a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_trace_write(
    runtime: *mut RuntimeHandle,
    format: c_int,
    path: *const c_char,
) -> c_int {
    boundary(|| {
        if path.is_null() {
            return Err(Failure::null("the path of the trace"));
        }
        // SAFETY: `path` is a string that ends with a 0, as the caller guarantees.
        let path = unsafe { CStr::from_ptr(path) };
        let mut formats = Format::ALL.into_iter();
        let Some(format) = formats.find(|&known| known as c_int == format) else {
            let text = format!(
                "the format of the trace must be from 0 to {}, not {format}",
                Format::ALL.len() - 1
            );
            return Err(Failure::new(ErrorCode::Range, text));
        };
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        let trace = unsafe { enter(runtime, |this| Ok(this.try_trace()?)) }?;
        write(&trace, format, path)
    })
}

fn write(trace: &Trace, format: Format, path: &CStr) -> Result<(), Failure> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let written = File::create(path).and_then(|file| {
        let mut to = BufWriter::new(file);
        format.write(trace, &mut to)?;
        to.flush()
    });
    written.map_err(|error| {
        let text = format!("cannot write the trace {}: {error}", path.display());
        Failure::new(ErrorCode::File, text)
    })
}

/// Reads the counters of a worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_counters_of(
    runtime: *mut RuntimeHandle,
    worker: u32,
    counters: *mut WorkerCounters,
) -> c_int {
    boundary(|| {
        if counters.is_null() {
            return Err(Failure::null("the pointer to the counters"));
        }
        // SAFETY: `counters` points to a structure that begins with its size, as the caller
        // guarantees.
        let size = unsafe { (&raw const (*counters).size).read_unaligned() };
        if !(COUNTERS_SIZE_MIN..=SIZE_MAX).contains(&size) {
            let known = size_of::<WorkerCounters>();
            let text =
                format!("counters.size is {size}, but usher_tasks_counters has {known} bytes");
            return Err(Failure::new(ErrorCode::Options, text));
        }
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        let all = unsafe { enter(runtime, |this| Ok(this.counters())) }?;
        let Some(&of_worker) = all.0.get(worker as usize) else {
            let text = format!(
                "the runtime has no worker {worker}: it has {} workers",
                all.0.len()
            );
            return Err(Failure::new(ErrorCode::Range, text));
        };
        let mut counted = WorkerCounters::from(of_worker);
        counted.size = size;
        let known = size.min(size_of::<WorkerCounters>());
        let from = (&raw const counted).cast::<u8>();
        let to = counters.cast::<u8>();
        // SAFETY: the two writes stay within the `size` bytes of the caller's structure. The first
        // write copies the bytes that the structures have in common, and the second sets the
        // caller's further bytes to 0.
        unsafe {
            ptr::copy_nonoverlapping(from, to, known);
            ptr::write_bytes(to.add(known), 0, size - known);
        }
        Ok(())
    })
}

/// Returns the current grouping of tasks without groups.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_current_grouping(
    runtime: *mut RuntimeHandle,
    grouping: *mut u32,
) -> c_int {
    boundary(|| {
        if grouping.is_null() {
            return Err(Failure::null("the pointer to the grouping"));
        }
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        let code = unsafe {
            enter(runtime, |this| {
                Ok(GroupingCode::from(this.current_grouping()))
            })
        }?;
        // SAFETY: `grouping` is writable, as the caller guarantees.
        unsafe { grouping.write(code as u32) };
        Ok(())
    })
}

/// Writes a table of the tried orders of a graph and their times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_graph_explain(
    graph: *const GraphHandle,
    text: *mut c_char,
    bytes: usize,
) -> usize {
    boundary_or(0, || {
        // SAFETY: `graph` is null or valid, as the caller guarantees.
        let graph = unsafe { graph.as_ref() };
        let explanation = graph.map_or_else(String::new, GraphHandle::explain);
        if !text.is_null() && bytes > 0 {
            let shown = explanation.len().min(bytes - 1);
            // SAFETY: `text` is not null, so `bytes` bytes are writable there, as the caller
            // guarantees.
            unsafe {
                ptr::copy_nonoverlapping(explanation.as_ptr(), text.cast(), shown);
                text.add(shown).write(0);
            }
        }
        explanation.len()
    })
}
