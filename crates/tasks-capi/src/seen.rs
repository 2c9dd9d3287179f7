// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a runtime tells of itself: traces, counters, orders and groups that it has
//! found.

use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::ptr;

use usher_tasks::{ColorBy, Counters, Runtime, Together, Trace};

use crate::error::{Code, Failure, boundary, boundary_or};
use crate::graph::GraphHandle;
use crate::options::SIZE_MAX;
use crate::runtime::{RuntimeHandle, enter};

/// `enum usher_tasks_format`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For ui.perfetto.dev and `chrome://tracing`.
    Chrome = 0,
    /// A picture, tasks coloured by temporal group.
    SvgByT,
    /// The same by spatial group.
    SvgByS,
}

impl Format {
    /// All, in order.
    pub const ALL: [Self; 3] = [Self::Chrome, Self::SvgByT, Self::SvgByS];

    fn write(self, trace: &Trace, to: impl Write) -> std::io::Result<()> {
        match self {
            Self::Chrome => trace.write_chrome(to),
            Self::SvgByT => trace.write_svg(ColorBy::T, to),
            Self::SvgByS => trace.write_svg(ColorBy::S, to),
        }
    }
}

/// `enum usher_tasks_common`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Common {
    /// The policy does not look for groups.
    Unasked = 0,
    /// When they were registered.
    Time,
    /// Where their data lie.
    Data,
    /// Nothing.
    Nothing,
}

impl Common {
    /// All, in order.
    pub const ALL: [Self; 4] = [Self::Unasked, Self::Time, Self::Data, Self::Nothing];
}

impl From<Option<Together>> for Common {
    fn from(together: Option<Together>) -> Self {
        match together {
            None => Self::Unasked,
            Some(Together::Time) => Self::Time,
            Some(Together::Data) => Self::Data,
            Some(Together::Nothing) => Self::Nothing,
        }
    }
}

/// `usher_tasks_counters`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes of the caller's structure.
    pub size: usize,
    /// Tasks that the worker ran.
    pub tasks: u64,
    /// Chains of tasks taken from workers of the same last-level cache...
    pub steals_llc: u64,
    /// ... of the same package...
    pub steals_package: u64,
    /// ... and from elsewhere.
    pub steals_machine: u64,
    /// Times that it took what had come from outside.
    pub outside: u64,
    /// Tasks sent to the owners of their spatial groups.
    pub sent: u64,
    /// Spatial groups that were another's and became its own.
    pub group_moves: u64,
    /// Times that it fell asleep.
    pub sleeps: u64,
    /// Nanoseconds that it slept.
    pub asleep_ns: u64,
}

/// As the first version had it.
const COUNTED_LEAST: usize = 80;

impl From<Counters> for Counted {
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

/// Writes tasks down from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_trace_start(
    runtime: *mut RuntimeHandle,
    tasks_per_worker: usize,
) -> c_int {
    let start = |this: &Runtime| Ok(this.start_trace(tasks_per_worker)?);
    // SAFETY: the caller promises a runtime that lives, or null.
    boundary(|| unsafe { enter(runtime, start) })
}

/// Writes nothing down any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_trace_stop(runtime: *mut RuntimeHandle) -> c_int {
    let stop = |this: &Runtime| {
        this.stop_trace();
        Ok(())
    };
    // SAFETY: the caller promises a runtime that lives, or null.
    boundary(|| unsafe { enter(runtime, stop) })
}

/// Writes a file of what was written down.
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
        // SAFETY: the caller promises a text that ends with a 0.
        let path = unsafe { CStr::from_ptr(path) };
        let mut formats = Format::ALL.into_iter();
        let Some(format) = formats.find(|&known| known as c_int == format) else {
            let words = format!("format {format}: there are 0 to {}", Format::ALL.len() - 1);
            return Err(Failure::new(Code::Range, words));
        };
        // SAFETY: the caller promises a runtime that lives, or null.
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
        let words = format!("writing the trace {}: {error}", path.display());
        Failure::new(Code::File, words)
    })
}

/// What a worker has done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_counters_of(
    runtime: *mut RuntimeHandle,
    worker: u32,
    counters: *mut Counted,
) -> c_int {
    boundary(|| {
        if counters.is_null() {
            return Err(Failure::null("the place for the counters"));
        }
        // SAFETY: the caller promises a structure whose first field says its size.
        let size = unsafe { (&raw const (*counters).size).read_unaligned() };
        if !(COUNTED_LEAST..=SIZE_MAX).contains(&size) {
            let known = size_of::<Counted>();
            let words = format!("counters.size is {size}, that of usher_tasks_counters {known}");
            return Err(Failure::new(Code::Options, words));
        }
        // SAFETY: the caller promises a runtime that lives, or null.
        let all = unsafe { enter(runtime, |this| Ok(this.counters())) }?;
        let Some(&of_worker) = all.0.get(worker as usize) else {
            let words = format!("worker {worker}: the runtime has {}", all.0.len());
            return Err(Failure::new(Code::Range, words));
        };
        let mut counted = Counted::from(of_worker);
        counted.size = size;
        let known = size.min(size_of::<Counted>());
        let from = (&raw const counted).cast::<u8>();
        let to = counters.cast::<u8>();
        // SAFETY: as many bytes as both have, and what a newer program has beyond.
        unsafe {
            ptr::copy_nonoverlapping(from, to, known);
            ptr::write_bytes(to.add(known), 0, size - known);
        }
        Ok(())
    })
}

/// What tasks without groups are taken to have in common.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_together(
    runtime: *mut RuntimeHandle,
    together: *mut u32,
) -> c_int {
    boundary(|| {
        if together.is_null() {
            return Err(Failure::null("the place for what tasks have in common"));
        }
        // SAFETY: the caller promises a runtime that lives, or null.
        let common = unsafe { enter(runtime, |this| Ok(Common::from(this.together()))) }?;
        // SAFETY: the caller promises a place to be written.
        unsafe { together.write(common as u32) };
        Ok(())
    })
}

/// Why tasks of a graph run in the order in which they do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_graph_explain(
    graph: *const GraphHandle,
    text: *mut c_char,
    bytes: usize,
) -> usize {
    boundary_or(0, || {
        // SAFETY: the caller promises one that lives, or null.
        let graph = unsafe { graph.as_ref() };
        let words = graph.map_or_else(String::new, GraphHandle::explain);
        if !text.is_null() && bytes > 0 {
            let shown = words.len().min(bytes - 1);
            // SAFETY: the caller promises so many bytes to be written.
            unsafe {
                ptr::copy_nonoverlapping(words.as_ptr(), text.cast(), shown);
                text.add(shown).write(0);
            }
        }
        words.len()
    })
}
