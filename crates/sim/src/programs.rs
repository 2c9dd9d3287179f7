// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs come, begin anew, are seated and stopped, and go.

use std::sync::Arc;

use oorandom::Rand32;

use crate::clock::NEVER;
use crate::engine::{Engine, News};
use crate::job::{Doing, Job, Thread, ThreadId};
use crate::machine::Mask;
use crate::ours::Standing;
use crate::script::Script;

impl Engine {
    /// A program arrives; it repeats its work until it is killed, or ends.
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
        self.begin(program);
        program
    }

    /// Starts the program's threads.
    fn begin(&mut self, program: usize) {
        self.jobs[program].rewind(self.now_ns);
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
                    doing: Doing::Waiting,
                    over: false,
                    nap: 0,
                    work: 0.0,
                    cold: 0.0,
                    contended: 0.0,
                    spins_at: None,
                    spins_until_ns: NEVER,
                    cpu_ns: 0,
                    vruntime: 0.0,
                    deadline: 0.0,
                    lag: 0.0,
                    standing: Standing::default(),
                    queue: None,
                    last: 0,
                    born: self.births,
                    affinity: self.jobs[program].inherited.clone(),
                    allowed: None,
                    held: false,
                    random: Rand32::new_inc(self.seed, stream),
                };
                self.births += 1;
                threads.push(self.keep(thread));
            }
        }
        self.jobs[program].threads.clone_from(&threads);
        self.work_out_masks(program);
        self.spread(program);
        for thread in threads {
            self.start(thread);
        }
    }

    fn keep(&mut self, thread: Thread) -> ThreadId {
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

    /// Ends a program at once.
    pub fn kill(&mut self, program: usize) {
        if self.jobs[program].gone {
            return;
        }
        self.jobs[program].repeats = false;
        for thread in self.jobs[program].threads.clone() {
            self.withdraw(thread);
            self.threads[thread].doing = Doing::Ended;
        }
        self.over(program);
    }

    /// The last thread has gone.
    pub(crate) fn over(&mut self, program: usize) {
        let now_ns = self.now_ns;
        let job = &mut self.jobs[program];
        if let Some(since_ns) = job.wait_since_ns.take() {
            job.wait_ns += now_ns - since_ns;
        }
        let ended: Vec<ThreadId> = std::mem::take(&mut job.threads);
        (job.runnable, job.queued) = (0, 0);
        self.waits_no_more(program);
        self.free.extend(ended);
        if self.jobs[program].alive == 0 {
            let job = &mut self.jobs[program];
            job.repetitions += 1;
            job.work_finished = job.work;
            let seconds = (now_ns - job.began_ns) as f64 / 1e9;
            self.news.push(News::Repeated { program, seconds });
            if self.jobs[program].repeats && self.took_time(program) {
                self.begin(program);
                return;
            }
        }
        self.jobs[program].gone = true;
        self.news.push(News::Ended(program));
    }

    /// Gives a program a seat, or takes it away.
    pub fn seat(&mut self, program: usize, cpus: Option<&usher_model::CpuSet>) {
        self.jobs[program].seat = cpus.map(|cpus| self.machine.mask(cpus));
        self.new_mask(program);
    }

    /// Takes CPUs off line, or puts them back: only these are there now.
    pub fn set_online(&mut self, cpus: &usher_model::CpuSet) {
        let online = self.machine.mask(cpus);
        for cpu in 0..self.cpus.len() {
            self.cpus[cpu].online = online.has(cpu);
        }
        for program in 0..self.jobs.len() {
            self.new_mask(program);
        }
    }

    /// Works out where a program may run, and moves its threads there.
    pub(crate) fn new_mask(&mut self, program: usize) {
        self.work_out_masks(program);
        for thread in self.jobs[program].threads.clone() {
            let (Doing::Running(cpu) | Doing::Queued(cpu)) = self.threads[thread].doing else {
                continue;
            };
            if !self.may_run(thread, cpu) {
                self.withdraw(thread);
                self.ready(thread);
            }
        }
        // Its new CPUs may be idle.
        for cpu in 0..self.cpus.len() {
            if self.jobs[program].mask.has(cpu) && self.cpus[cpu].current.is_none() {
                self.dispatch(cpu);
            }
        }
    }

    /// Stops a program, or lets it go on.
    pub fn freeze(&mut self, program: usize, frozen: bool) {
        self.jobs[program].frozen = frozen;
        for thread in self.jobs[program].threads.clone() {
            match self.threads[thread].doing {
                Doing::Running(_) | Doing::Queued(_) if frozen => {
                    self.withdraw(thread);
                    self.stop(thread);
                }
                Doing::Stopped if !frozen && !self.threads[thread].held => self.ready(thread),
                _ => {}
            }
        }
    }

    /// Work that a program has done since it arrived, in nanoseconds of a core
    /// that its threads have to themselves.
    pub(crate) fn work_ns(&self, program: usize) -> f64 {
        self.jobs[program].work
    }

    /// CPU time that a program has had since it arrived.
    pub(crate) fn cpu_ns(&self, program: usize) -> f64 {
        self.jobs[program].cpu_ns as f64
    }
}
