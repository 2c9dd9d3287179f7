// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts, repeats and ends simulated programs.
//!
//! A repetition creates all threads of the program's script anew, and ends with its last thread.
//! The program then starts the next repetition or is removed. A script that takes no virtual time
//! is reported as a fault, because its repetitions would never end.
//!
//! A start or a kill takes time in proportion to the threads, times the kernel's time to place or
//! remove a thread. The record of an ended program is kept until the end of the simulation.

use std::sync::Arc;

use oorandom::Rand32;

use crate::clock::NEVER;
use crate::engine::{Engine, SimEvent};
use crate::job::{Job, RunState, SchedEntity, Thread, ThreadId};
use crate::script::Script;

impl Engine {
    /// Adds a program. It runs once, or repeats its work until it is killed.
    pub fn arrive(&mut self, script: Arc<Script>, repeats: bool) -> usize {
        let mask = self.os.online();
        let program = self.os.tasks.jobs.len();
        self.os.tasks.jobs.push(Job {
            threads: Vec::new(),
            alive: 0,
            runnable: 0,
            barriers: Vec::new(),
            locks: Vec::new(),
            pools: Vec::new(),
            queues: Vec::new(),
            mask,
            seat: None,
            inherited: None,
            frozen: false,
            gone: false,
            repeats,
            began_ns: self.os.now_ns,
            repetitions: 0,
            cpu_ns: 0,
            work: 0.0,
            work_finished: 0.0,
            spun_ns: 0.0,
            wait_ns: 0,
            wait_since_ns: None,
            queued: 0,
            delay_ns: 0,
            queued_ns: self.os.now_ns,
            speed: vec![1.0; self.os.machine.domains.len()],
            busy_ns: vec![0.0; self.os.machine.domains.len()],
            done_ns: vec![0.0; self.os.machine.domains.len()],
            home: vec![1.0 / self.os.machine.nodes as f64; self.os.machine.nodes],
            touched_ns: 0.0,
            script: script.into(),
        });
        self.start_repetition(program);
        program
    }

    /// Begins a repetition: creates and starts the program's threads.
    fn start_repetition(&mut self, program: usize) {
        self.os.tasks.jobs[program].reset(self.os.now_ns);
        let script = Arc::clone(&self.os.tasks.jobs[program].script.text);
        let repetition = u64::from(self.os.tasks.jobs[program].repetitions);
        let mut threads = Vec::new();
        for (number, role) in script.roles.iter().enumerate() {
            for index in 0..role.threads {
                let stream = (program as u64) << 40 | repetition << 20 | threads.len() as u64;
                let thread = Thread {
                    program,
                    role: number,
                    number: index,
                    step: 0,
                    rounds: vec![0; role.steps.len()],
                    run_state: RunState::Waiting,
                    finished: false,
                    sleep_timer: 0,
                    work: 0.0,
                    cold: 0.0,
                    bounce_work: 0.0,
                    spins_at: None,
                    spins_until_ns: NEVER,
                    cpu_ns: 0,
                    vruntime: 0.0,
                    deadline: 0.0,
                    lag: 0.0,
                    entity: SchedEntity::default(),
                    queue: None,
                    last: 0,
                    generation: self.os.tasks.threads_created,
                    affinity: self.os.tasks.jobs[program].inherited.clone(),
                    allowed: None,
                    signal_stopped: false,
                    resumed: false,
                    random: Rand32::new_inc(self.os.seed, stream),
                };
                threads.push(self.os.tasks.store(thread));
            }
        }
        self.os.tasks.jobs[program].threads.clone_from(&threads);
        self.os.update_masks(program);
        self.os.place_new_threads(program);
        for thread in threads {
            self.start(thread);
        }
    }

    /// Kills a program.
    pub fn kill(&mut self, program: usize) {
        if self.os.tasks.jobs[program].gone {
            return;
        }
        self.os.tasks.jobs[program].repeats = false;
        for thread in self.os.tasks.jobs[program].threads.clone() {
            self.os.deactivate(thread);
            self.os.tasks.threads[thread].run_state = RunState::Ended;
            self.os.end_task(thread);
        }
        self.end_repetition(program);
    }

    /// Ends a repetition after the end of its last thread, and restarts or removes the program.
    pub(crate) fn end_repetition(&mut self, program: usize) {
        let now_ns = self.os.now_ns;
        let job = &mut self.os.tasks.jobs[program];
        if let Some(since_ns) = job.wait_since_ns.take() {
            job.wait_ns += now_ns - since_ns;
        }
        let ended: Vec<ThreadId> = std::mem::take(&mut job.threads);
        (job.runnable, job.queued) = (0, 0);
        self.os.remove_waiting_program(program);
        self.os.tasks.release(ended);
        if self.os.tasks.jobs[program].alive == 0 {
            let job = &mut self.os.tasks.jobs[program];
            job.repetitions += 1;
            job.work_finished = job.work;
            let seconds = (now_ns - job.began_ns) as f64 / 1e9;
            self.sim_events
                .push(SimEvent::Repeated { program, seconds });
            if self.os.tasks.jobs[program].repeats && self.took_time(program) {
                self.start_repetition(program);
                return;
            }
        }
        self.os.tasks.jobs[program].gone = true;
        self.sim_events.push(SimEvent::Ended(program));
    }

    fn took_time(&mut self, program: usize) -> bool {
        let os = &self.os;
        let detector = &mut self.fault_detector;
        detector.check_took_time(program, os.now_ns, &os.tasks)
    }
}
