// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations of the simulated kernel on whole programs: arrival, repetitions, seats, CPU hotplug,
//! freezing and the end. Threads on CPUs that they may no longer use are moved at once.

use std::sync::Arc;

use oorandom::Rand32;

use crate::clock::NEVER;
use crate::engine::{Engine, SimEvent};
use crate::job::{Job, RunState, Thread, ThreadId};
use crate::machine::Mask;
use crate::script::Script;
use crate::usher_sched::SchedEntity;

impl Engine {
    /// Adds a program. It runs once, or repeats its work until it is killed.
    pub fn arrive(&mut self, script: Arc<Script>, repeats: bool) -> usize {
        let mut mask = Mask::new(self.cpus.len());
        for (cpu, state) in self.cpus.iter().enumerate() {
            if state.online {
                mask.insert(cpu);
            }
        }
        let program = self.jobs.len();
        self.jobs.push(Job {
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
            began_ns: self.now_ns,
            repetitions: 0,
            cpu_ns: 0,
            work: 0.0,
            work_finished: 0.0,
            spun_ns: 0.0,
            wait_ns: 0,
            wait_since_ns: None,
            queued: 0,
            speed: vec![1.0; self.machine.domains.len()],
            busy_ns: vec![0.0; self.machine.domains.len()],
            done_ns: vec![0.0; self.machine.domains.len()],
            home: vec![1.0 / self.machine.nodes as f64; self.machine.nodes],
            touched_ns: 0.0,
            script: script.into(),
        });
        self.start_repetition(program);
        program
    }

    /// Creates and starts the program's threads.
    fn start_repetition(&mut self, program: usize) {
        self.jobs[program].reset(self.now_ns);
        let script = Arc::clone(&self.jobs[program].script.text);
        let repetition = u64::from(self.jobs[program].repetitions);
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
                    generation: self.threads_created,
                    affinity: self.jobs[program].inherited.clone(),
                    allowed: None,
                    signal_stopped: false,
                    random: Rand32::new_inc(self.seed, stream),
                };
                self.threads_created += 1;
                threads.push(self.store_thread(thread));
            }
        }
        self.jobs[program].threads.clone_from(&threads);
        self.update_masks(program);
        self.place_new_threads(program);
        for thread in threads {
            self.start(thread);
        }
    }

    fn store_thread(&mut self, thread: Thread) -> ThreadId {
        match self.free.pop() {
            Some(id) => {
                self.threads[id] = thread;
                id
            }
            None => {
                self.threads.push(thread);
                self.threads.len() - 1
            }
        }
    }

    /// Kills a program.
    pub fn kill(&mut self, program: usize) {
        if self.jobs[program].gone {
            return;
        }
        self.jobs[program].repeats = false;
        for thread in self.jobs[program].threads.clone() {
            self.deactivate(thread);
            self.threads[thread].run_state = RunState::Ended;
            self.end_task(thread);
        }
        self.end_repetition(program);
    }

    /// Ends a repetition after the end of its last thread, and restarts or removes the program.
    pub(crate) fn end_repetition(&mut self, program: usize) {
        let now_ns = self.now_ns;
        let job = &mut self.jobs[program];
        if let Some(since_ns) = job.wait_since_ns.take() {
            job.wait_ns += now_ns - since_ns;
        }
        let ended: Vec<ThreadId> = std::mem::take(&mut job.threads);
        (job.runnable, job.queued) = (0, 0);
        self.remove_waiting_program(program);
        self.free.extend(ended);
        if self.jobs[program].alive == 0 {
            let job = &mut self.jobs[program];
            job.repetitions += 1;
            job.work_finished = job.work;
            let seconds = (now_ns - job.began_ns) as f64 / 1e9;
            self.sim_events
                .push(SimEvent::Repeated { program, seconds });
            if self.jobs[program].repeats && self.check_took_time(program) {
                self.start_repetition(program);
                return;
            }
        }
        self.jobs[program].gone = true;
        self.sim_events.push(SimEvent::Ended(program));
    }

    /// Sets or removes a program's seat.
    pub fn seat(&mut self, program: usize, cpus: Option<&usher_model::CpuSet>) {
        self.jobs[program].seat = cpus.map(|cpus| self.machine.mask(cpus));
        self.apply_masks(program);
    }

    /// Sets the online CPUs.
    pub fn set_online(&mut self, cpus: &usher_model::CpuSet) {
        let online = self.machine.mask(cpus);
        for cpu in 0..self.cpus.len() {
            self.cpus[cpu].online = online.has(cpu);
        }
        self.set_online_usher();
        for program in 0..self.jobs.len() {
            self.apply_masks(program);
        }
    }

    /// Updates the allowed CPUs of a program and moves its threads accordingly.
    pub(crate) fn apply_masks(&mut self, program: usize) {
        self.update_masks(program);
        match self.kernel.is_usher() {
            true => self.apply_masks_usher(program),
            false => self.leave_forbidden_cpus(program),
        }
        // The new CPUs may be idle.
        for cpu in 0..self.cpus.len() {
            if self.jobs[program].mask.has(cpu) && self.cpus[cpu].current.is_none() {
                self.dispatch(cpu);
            }
        }
    }

    /// Moves threads that run or wait on a CPU outside their mask.
    fn leave_forbidden_cpus(&mut self, program: usize) {
        for thread in self.jobs[program].threads.clone() {
            let (RunState::Running(cpu) | RunState::Queued(cpu)) = self.threads[thread].run_state
            else {
                continue;
            };
            if !self.may_run(thread, cpu) {
                self.deactivate(thread);
                self.ready(thread);
            }
        }
    }

    /// Freezes or thaws a program.
    pub fn freeze(&mut self, program: usize, frozen: bool) {
        self.jobs[program].frozen = frozen;
        for thread in self.jobs[program].threads.clone() {
            match self.threads[thread].run_state {
                RunState::Running(_) | RunState::Queued(_) if frozen => {
                    self.deactivate(thread);
                    self.stop(thread);
                }
                RunState::Stopped if !frozen && !self.threads[thread].signal_stopped => {
                    self.ready(thread)
                }
                _ => {}
            }
        }
    }

    /// Work that a program has done since its arrival, in nanoseconds of an undisturbed core.
    pub(crate) fn work_ns(&self, program: usize) -> f64 {
        self.jobs[program].work
    }

    /// CPU time that a program has used since its arrival.
    pub(crate) fn cpu_ns(&self, program: usize) -> f64 {
        self.jobs[program].cpu_ns as f64
    }
}
