// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the options of a runtime from a C caller that was compiled with an older or newer header,
//! and creates the runtime.
//!
//! 1. Read the size from the first field. Sizes below 24 or above 4096 bytes are errors.
//! 2. If the structure is larger than this version's, reject it if an additional byte is not 0.
//! 3. Copy the known fields. Fields that a smaller structure lacks are 0.
//! 4. Check the values of the fields.
//!
//! Null options mean one worker per usable CPU, at most 1024, with the policy `usher`. An invalid
//! value is an error, and no runtime is created.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::{ptr, slice, thread};

use usher_tasks::{Policy, Runtime, RuntimeBuilder, WORKERS_MAX, WorkerPlaces};

use crate::error::{ErrorCode, Failure, boundary_or};

/// Maximum size of a structure of any version, in bytes. A larger size is an error.
pub(crate) const SIZE_MAX: usize = 4096;

/// `usher_tasks_options`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Size of the caller's structure in bytes.
    pub size: usize,
    /// Number of workers, 1 to 1024.
    pub workers: u32,
    /// Number of the policy: 0 is `usher`, 1 is `paper`, 2 is first come, first served, 3 is last
    /// come, first served.
    pub policy: u32,
    /// Number of temporal groups of the policy `paper`.
    pub t_groups: u32,
    /// Number of spatial groups of the policy `paper`.
    pub s_groups: u32,
    /// Binding of workers: 0 binds each worker to the CPUs of a last-level cache, 1 binds no
    /// worker.
    pub binding: u32,
    /// Whether the number of running workers follows the CPUs: 0 if it does, 1 if all workers run.
    pub running: u32,
    /// Size of each worker's stack in bytes; 0 means 2 MiB.
    pub stack_bytes: usize,
    /// Whether the runtime reports its tasks on the heartbeat page: 0 if it does, 1 if not.
    pub progress: u32,
    /// 0.
    pub reserved: u32,
    /// The first dense token.
    pub dense_first: u64,
    /// Number of dense tokens; 0 means that all tokens are free.
    pub dense_count: u64,
}

/// Size of the structure in bytes in the first version of the library.
const OPTIONS_SIZE_MIN: usize = 24;

impl Options {
    /// Returns the options for a caller that passes a null pointer.
    pub fn default_options() -> Self {
        Self {
            size: size_of::<Self>(),
            workers: usher_tasks_cpus(),
            policy: 0,
            t_groups: 0,
            s_groups: 0,
            binding: 0,
            running: 0,
            stack_bytes: 0,
            progress: 0,
            reserved: 0,
            dense_first: 0,
            dense_count: 0,
        }
    }

    /// Reads the options of a caller.
    ///
    /// # Errors
    /// If the size is invalid, or if a byte beyond the fields that this version knows is not 0.
    ///
    /// # Safety
    /// `from` is null, or its first field is readable. If that field contains a valid size, this
    /// number of bytes is readable at `from`.
    pub unsafe fn read(from: *const Self) -> Result<Self, Failure> {
        if from.is_null() {
            return Ok(Self::default_options());
        }
        // SAFETY: `from` is not null, so its first field is readable, as the caller guarantees.
        let size = unsafe { (&raw const (*from).size).read_unaligned() };
        if !(OPTIONS_SIZE_MIN..=SIZE_MAX).contains(&size) {
            let text = format!(
                "options.size is {size}, but usher_tasks_options has {} bytes",
                size_of::<Self>()
            );
            return Err(Failure::new(ErrorCode::Options, text));
        }
        let known = size.min(size_of::<Self>());
        // SAFETY: `size` bytes from `from` on are readable, as the caller guarantees. These include
        // the bytes beyond the known fields.
        let beyond = unsafe { slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
        if let Some(at) = beyond.iter().position(|&byte| byte != 0) {
            let text = format!(
                "byte {} of the options is set, but version {} of the library knows only {} bytes",
                known + at,
                env!("CARGO_PKG_VERSION"),
                size_of::<Self>()
            );
            return Err(Failure::new(ErrorCode::Options, text));
        }
        let mut options = MaybeUninit::<Self>::zeroed();
        // SAFETY: the copied length is the smaller of the sizes of the two structures, so the bytes
        // are readable, as the caller guarantees, and fit. All values of the fields are valid, and
        // fields that the caller does not know are 0.
        unsafe {
            let to = options.as_mut_ptr().cast::<u8>();
            ptr::copy_nonoverlapping(from.cast::<u8>(), to, known);
            Ok(options.assume_init())
        }
    }

    /// Creates a runtime with these options.
    ///
    /// # Errors
    /// If the options are invalid or the runtime cannot be created.
    pub fn runtime(&self) -> Result<Runtime, Failure> {
        let policy = self.policy()?;
        let workers = self.workers as usize;
        let builder = match self.binding {
            0 => RuntimeBuilder::new(workers),
            // Building this runtime returns an error, because the number is too large.
            // `WorkerPlaces::anywhere` would first allocate memory for each worker.
            1 if workers > WORKERS_MAX => RuntimeBuilder::new(workers),
            1 => RuntimeBuilder::on(WorkerPlaces::anywhere(workers)),
            other => {
                let text = format!("the option binding must be 0 or 1, not {other}");
                return Err(Failure::new(ErrorCode::Options, text));
            }
        };
        let builder = builder.policy(policy).stack_bytes(self.stack_bytes);
        let builder = builder.follow_cpus(is_zero("running", self.running)?);
        let builder = builder.report_progress(is_zero("progress", self.progress)?);
        if self.reserved != 0 {
            let text = format!("the option reserved must be 0, not {}", self.reserved);
            return Err(Failure::new(ErrorCode::Options, text));
        }
        Ok(builder.dense_tokens(self.dense_tokens()?).build()?)
    }

    /// Returns the range of dense tokens.
    ///
    /// # Errors
    /// If the range would contain numbers above those of tokens.
    fn dense_tokens(&self) -> Result<Range<u64>, Failure> {
        let (first, count) = (self.dense_first, self.dense_count);
        let end = first.checked_add(count).ok_or_else(|| {
            let text = format!(
                "{count} dense tokens from {first} on: the last one must be below {}",
                u64::MAX
            );
            Failure::new(ErrorCode::Options, text)
        })?;
        Ok(first..end)
    }

    /// Returns the policy.
    ///
    /// # Errors
    /// If no policy has this number, or the policy has too many groups.
    pub fn policy(&self) -> Result<Policy, Failure> {
        let (t_groups, s_groups) = (self.t_groups, self.s_groups);
        let policy = match self.policy {
            0 => Policy::Usher,
            1 => Policy::Paper { t_groups, s_groups },
            2 => Policy::Fcfs,
            3 => Policy::Lcfs,
            other => {
                let text = format!("the option policy must be from 0 to 3, not {other}");
                return Err(Failure::new(ErrorCode::Options, text));
            }
        };
        policy.check()?;
        Ok(policy)
    }
}

/// Returns whether an option that must be 0 or 1 is 0.
fn is_zero(option: &str, value: u32) -> Result<bool, Failure> {
    match value {
        0 | 1 => Ok(value == 0),
        other => {
            let text = format!("the option {option} must be 0 or 1, not {other}");
            Err(Failure::new(ErrorCode::Options, text))
        }
    }
}

/// Returns the number of CPUs that this process may use, by its affinity mask and its CPU quota; at
/// most [`WORKERS_MAX`].
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_cpus() -> u32 {
    let cpus = || thread::available_parallelism().map_or(1, usize::from);
    boundary_or(1, || {
        u32::try_from(cpus())
            .unwrap_or(u32::MAX)
            .min(WORKERS_MAX as u32)
    })
}
