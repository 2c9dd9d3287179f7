// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a runtime is to be, as a program of any version says it.

use std::mem::MaybeUninit;
use std::{ptr, slice, thread};

use usher_tasks::{Places, Policy, Runtime, RuntimeBuilder, WORKERS_MAX};

use crate::error::{Code, Failure, boundary_or};

/// No version's structures are larger: what claims to be is none of them.
pub(crate) const SIZE_MAX: usize = 4096;

/// `usher_tasks_options`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of the caller's structure.
    pub size: usize,
    /// 1 to 1024.
    pub workers: u32,
    /// 0 usher, 1 paper, 2 first come first served, 3 last come first served.
    pub policy: u32,
    /// Temporal groups of the policy `paper`.
    pub t_groups: u32,
    /// Its spatial groups.
    pub s_groups: u32,
    /// 0 to the CPUs of last-level caches, 1 not at all.
    pub binding: u32,
    /// 0.
    pub reserved: u32,
    /// Of each worker's stack; 0: 2 MiB.
    pub stack_bytes: usize,
}

/// As the first version had it.
const SIZE_LEAST: usize = 24;

impl Options {
    /// Those that count where a program gives none.
    pub fn default_here() -> Self {
        Self {
            size: size_of::<Self>(),
            workers: usher_tasks_cpus(),
            policy: 0,
            t_groups: 0,
            s_groups: 0,
            binding: 0,
            reserved: 0,
            stack_bytes: 0,
        }
    }

    /// Reads a caller's options.
    ///
    /// # Errors
    /// Where the size is none, or something is set that is not known here.
    ///
    /// # Safety
    /// There are as many bytes as the first field says, if that may be a size.
    pub unsafe fn read(from: *const Self) -> Result<Self, Failure> {
        if from.is_null() {
            return Ok(Self::default_here());
        }
        // SAFETY: options have a size, whatever else.
        let size = unsafe { (&raw const (*from).size).read_unaligned() };
        if !(SIZE_LEAST..=SIZE_MAX).contains(&size) {
            let words = format!(
                "options.size is {size}, that of usher_tasks_options {}",
                size_of::<Self>()
            );
            return Err(Failure::new(Code::Options, words));
        }
        let known = size.min(size_of::<Self>());
        // SAFETY: the caller's promise; what is behind what we know is somebody's, too.
        let beyond = unsafe { slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
        if let Some(at) = beyond.iter().position(|&byte| byte != 0) {
            let words = format!(
                "byte {} of the options is set: version {} knows {} bytes",
                known + at,
                env!("CARGO_PKG_VERSION"),
                size_of::<Self>()
            );
            return Err(Failure::new(Code::Options, words));
        }
        let mut options = MaybeUninit::<Self>::zeroed();
        // SAFETY: the caller's promise; no more than either of them has. Numbers may be
        // any, and what a caller does not know of is 0.
        let options = unsafe {
            let to = options.as_mut_ptr().cast::<u8>();
            ptr::copy_nonoverlapping(from.cast::<u8>(), to, known);
            options.assume_init()
        };
        match options.reserved {
            0 => Ok(options),
            _ => Err(Failure::new(
                Code::Options,
                "reserved is set in the options".to_owned(),
            )),
        }
    }

    /// A runtime of this kind.
    ///
    /// # Errors
    /// Where there is none.
    pub fn runtime(&self) -> Result<Runtime, Failure> {
        let policy = self.policy()?;
        let workers = self.workers as usize;
        let builder = match self.binding {
            0 => RuntimeBuilder::new(workers),
            // The number is not looked at before, and each takes memory.
            1 if workers > WORKERS_MAX => RuntimeBuilder::new(workers),
            1 => RuntimeBuilder::on(Places::anywhere(workers)),
            other => {
                let words = format!("binding {other}: there are 0 and 1");
                return Err(Failure::new(Code::Options, words));
            }
        };
        let builder = builder.policy(policy).stack_bytes(self.stack_bytes);
        Ok(builder.build()?)
    }

    /// The policy.
    ///
    /// # Errors
    /// Where there is none of that number, or its groups are too many.
    pub fn policy(&self) -> Result<Policy, Failure> {
        let (t_groups, s_groups) = (self.t_groups, self.s_groups);
        let policy = match self.policy {
            0 => Policy::Usher,
            1 => Policy::Paper { t_groups, s_groups },
            2 => Policy::Fcfs,
            3 => Policy::Lcfs,
            other => {
                let words = format!("policy {other}: there are 0 to 3");
                return Err(Failure::new(Code::Options, words));
            }
        };
        policy.check()?;
        Ok(policy)
    }
}

/// CPUs that this process may use.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_cpus() -> u32 {
    let cpus = || thread::available_parallelism().map_or(1, usize::from);
    boundary_or(1, || {
        u32::try_from(cpus())
            .unwrap_or(u32::MAX)
            .min(WORKERS_MAX as u32)
    })
}
