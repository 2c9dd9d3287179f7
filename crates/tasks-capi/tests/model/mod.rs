// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of the C functions for tasks by token. It predicts the result of each call by means of
//! tables, without threads.
//!
//! The test waits after each call, so no task is ready or running at the next call. The results of
//! calls by tasks are predicted only for one worker: in that case, a task has ended before a task
//! begins that it has made ready.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use oorandom::Rand64;
use usher_tasks_capi::current_task::{Entry, usher_tasks_current, usher_tasks_fail};
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::runtime::*;

use crate::common::{OK, OwnedRuntime, ReportLine, failed, options, unregistered, unresolved};

const TOKENS: u64 = 6;
const T_GROUPS: u32 = 3;
const S_GROUPS: u32 = 2;

/// The action of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskAction {
    Nothing,
    Fails,
    /// Resolves a token.
    Resolves(u64),
    /// Waits for the task's own runtime, which is an error.
    Waits,
    /// Destroys the task's own runtime, which is an error.
    Destroys,
}

/// A task: its action, what has happened to it, and what is expected.
#[derive(Debug)]
struct ModelTask {
    does: TaskAction,
    is_owned: bool,
    ran: AtomicU32,
    discarded: AtomicU32,
    /// The error code that the task's own call returned.
    code: AtomicI32,
    /// The expected values of `ran`, `discarded` and `code`.
    expected: (u32, u32, c_int),
}

unsafe extern "C-unwind" fn does(arg: *mut c_void) {
    // SAFETY: the argument is a note of the machine, which frees its notes after the runtime is
    // destroyed.
    let note = unsafe { &*arg.cast::<ModelTask>() };
    note.ran.fetch_add(1, Ordering::SeqCst);
    let own = usher_tasks_current();
    // SAFETY: the runtime is that of the calling task, so it exists.
    let code = unsafe {
        match note.does {
            TaskAction::Nothing => OK,
            TaskAction::Fails => usher_tasks_fail(c"requested".as_ptr()),
            TaskAction::Resolves(token) => usher_tasks_resolve(own, token),
            TaskAction::Waits => usher_tasks_wait(own, ptr::null_mut()),
            TaskAction::Destroys => usher_tasks_runtime_destroy(own),
        }
    };
    note.code.store(code, Ordering::SeqCst);
}

unsafe extern "C-unwind" fn discarded(arg: *mut c_void) {
    // SAFETY: the argument is a note of the machine, which frees its notes after the runtime is
    // destroyed.
    let note = unsafe { &*arg.cast::<ModelTask>() };
    note.discarded.fetch_add(1, Ordering::SeqCst);
}

/// A runtime and its expected state.
pub struct Machine {
    owner: Option<OwnedRuntime>,
    workers: u32,
    is_paper: bool,
    is_cancelled: bool,
    /// The number of resolutions of each unregistered token.
    early: BTreeMap<u64, u32>,
    /// The missing resolutions and the index in `notes` of each waiting task, by token.
    waiting: BTreeMap<u64, (u32, usize)>,
    /// The token of the task that the model is running.
    running: Option<u64>,
    ready: VecDeque<(u64, usize)>,
    failed: Vec<ReportLine>,
    /// The tasks. They are boxed, because the arguments of registered tasks point to them.
    #[allow(clippy::vec_box, reason = "tasks point to them")]
    notes: Vec<Box<ModelTask>>,
}

impl Machine {
    /// Creates a runtime with random options.
    pub fn new(random: &mut Rand64) -> Self {
        let workers = [1, 1, 2, 3][random.rand_range(0..4) as usize];
        let policy = random.rand_range(0..4) as u32;
        let options = options(workers, policy, (T_GROUPS, S_GROUPS));
        Self {
            owner: Some(OwnedRuntime::with(&options)),
            workers,
            is_paper: policy == 1,
            is_cancelled: false,
            early: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: None,
            ready: VecDeque::new(),
            failed: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn runtime(&self) -> *mut RuntimeHandle {
        self.owner.as_ref().map_or(ptr::null_mut(), |owner| owner.0)
    }

    /// Makes a random call and checks its result.
    pub fn call(&mut self, random: &mut Rand64) {
        let token = random.rand_range(0..TOKENS);
        match random.rand_range(0..40) {
            0..18 => {
                let expected = self.resolve(token);
                // SAFETY: the runtime is valid.
                let code = unsafe { usher_tasks_resolve(self.runtime(), token) };
                assert_eq!(code, expected, "resolve {token}");
            }
            18..38 => self.register(random, token),
            38 => self.call_with_null(random, token),
            _ if random.rand_range(0..4) == 0 => self.cancel(),
            _ => {}
        }
        self.work();
        self.check_wait();
    }

    fn register(&mut self, random: &mut Rand64, token: u64) {
        let kinds = if self.workers == 1 { 5 } else { 4 };
        let does_what = match random.rand_range(0..kinds) {
            0 => TaskAction::Nothing,
            1 => TaskAction::Fails,
            2 => TaskAction::Waits,
            3 => TaskAction::Destroys,
            _ => TaskAction::Resolves(random.rand_range(0..TOKENS)),
        };
        let count = [0, 0, 1, 1, 2, 3, u32::MAX][random.rand_range(0..7) as usize];
        let t = [0, 1, T_GROUPS - 1, T_GROUPS, u32::MAX][random.rand_range(0..5) as usize];
        let s = [0, S_GROUPS - 1, S_GROUPS][random.rand_range(0..3) as usize];
        let is_owned = random.rand_range(0..2) == 1;
        self.notes.push(Box::new(ModelTask {
            does: does_what,
            is_owned,
            ran: AtomicU32::new(0),
            discarded: AtomicU32::new(0),
            code: AtomicI32::new(-1),
            expected: (0, 0, -1),
        }));
        let note = self.notes.len() - 1;
        let expected = self.registered(token, count, (t, s), note);
        let arg = ptr::from_ref(&*self.notes[note]).cast_mut().cast();
        let (entry, discard) = (Some(does as Entry), Some(discarded as Entry));
        let runtime = self.runtime();
        // SAFETY: the runtime is valid, and the note is freed after the runtime is destroyed.
        let code = unsafe {
            match is_owned {
                true => {
                    usher_tasks_register_owned(runtime, token, count, entry, arg, discard, t, s)
                }
                false => usher_tasks_register(runtime, token, count, entry, arg, t, s),
            }
        };
        assert_eq!(code, expected, "register {token} {count} in {t} {s}");
    }

    /// Returns the expected result of registering.
    fn registered(&mut self, token: u64, count: u32, groups: (u32, u32), note: usize) -> c_int {
        let (t_groups, s_groups) = match self.is_paper {
            true => (T_GROUPS, S_GROUPS),
            false => (u32::MAX, u32::MAX),
        };
        if groups.0 >= t_groups || groups.1 >= s_groups {
            return ErrorCode::Groups as c_int;
        }
        if self.waiting.contains_key(&token) {
            return ErrorCode::Registered as c_int;
        }
        let times = self.early.get(&token).copied().unwrap_or(0);
        if times > count {
            return ErrorCode::ResolvedTooOften as c_int;
        }
        self.early.remove(&token);
        match count - times {
            0 => self.ready.push_back((token, note)),
            left => {
                self.waiting.insert(token, (left, note));
            }
        }
        OK
    }

    /// Returns the expected result of resolving.
    fn resolve(&mut self, token: u64) -> c_int {
        let is_ready = self.ready.iter().any(|&(ready, _)| ready == token);
        if is_ready || self.running == Some(token) {
            return ErrorCode::ResolvedTooOften as c_int;
        }
        match self.waiting.get_mut(&token) {
            Some((left, note)) => {
                *left -= 1;
                if *left == 0 {
                    self.ready.push_back((token, *note));
                    self.waiting.remove(&token);
                }
            }
            None => *self.early.entry(token).or_default() += 1,
        }
        OK
    }

    /// Runs the ready tasks of the model one after the other.
    fn work(&mut self) {
        while let Some((token, note)) = self.ready.pop_front() {
            if self.is_cancelled {
                self.discards(note);
                continue;
            }
            self.running = Some(token);
            let code = match self.notes[note].does {
                TaskAction::Nothing => OK,
                TaskAction::Fails => {
                    self.failed.push(failed(token, "requested"));
                    OK
                }
                TaskAction::Resolves(other) => self.resolve(other),
                TaskAction::Waits | TaskAction::Destroys => ErrorCode::Inside as c_int,
            };
            self.running = None;
            self.notes[note].expected = (1, 0, code);
        }
    }

    fn discards(&mut self, note: usize) {
        let note = &mut self.notes[note];
        note.expected = (0, u32::from(note.is_owned), -1);
    }

    fn check_wait(&mut self) {
        let mut left = std::mem::take(&mut self.failed);
        left.extend(
            self.waiting
                .iter()
                .map(|(&token, &(more, _))| unresolved(token, more)),
        );
        left.extend(self.early.keys().map(|&token| unregistered(token)));
        let expected = if left.is_empty() {
            OK
        } else {
            ErrorCode::Unfinished as c_int
        };
        let owner = self.owner.as_ref().unwrap();
        assert_eq!(owner.wait(), (expected, left));
        self.check_notes();
    }

    fn check_notes(&self) {
        for note in &self.notes {
            let now = (
                note.ran.load(Ordering::SeqCst),
                note.discarded.load(Ordering::SeqCst),
                note.code.load(Ordering::SeqCst),
            );
            assert_eq!(now, note.expected, "{note:?}");
        }
    }

    fn cancel(&mut self) {
        let mut dropped = usize::MAX;
        // SAFETY: the runtime is valid, and the pointer refers to a local variable.
        let code = unsafe { usher_tasks_cancel(self.runtime(), &raw mut dropped) };
        assert_eq!(code, OK);
        assert_eq!(dropped, self.waiting.len() + self.early.len());
        self.is_cancelled = true;
        self.drop_waiting();
    }

    fn drop_waiting(&mut self) {
        self.early.clear();
        for (_, (_, note)) in std::mem::take(&mut self.waiting) {
            self.discards(note);
        }
    }

    fn call_with_null(&self, random: &mut Rand64, token: u64) {
        let (runtime, none) = (self.runtime(), ptr::null_mut());
        let owned = usher_tasks_register_owned;
        // SAFETY: these functions accept null.
        let code = unsafe {
            match random.rand_range(0..6) {
                0 => usher_tasks_register(ptr::null_mut(), token, 0, Some(does), none, 0, 0),
                1 => usher_tasks_register(runtime, token, 0, None, none, 0, 0),
                2 => owned(runtime, token, 0, Some(does), none, None, 0, 0),
                3 => owned(runtime, token, 0, None, none, Some(discarded), 0, 0),
                4 => usher_tasks_resolve(ptr::null_mut(), token),
                _ => usher_tasks_wait(ptr::null_mut(), ptr::null_mut()),
            }
        };
        assert_eq!(code, ErrorCode::Null as c_int);
    }

    /// Destroys the runtime, and checks that the waiting tasks were discarded.
    pub fn end(&mut self) {
        self.owner = None;
        self.drop_waiting();
        self.check_notes();
    }
}
