// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loom tests of dense tokens. Each test explores the interleavings of two or three threads; most are
//! limited to two or three preemptions.

use loom::sync::Arc;
use loom::thread;

use super::*;

fn with_preemptions(count: usize) -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(count);
    model
}

fn tokens() -> Tokens {
    let mut tokens = Tokens::default();
    tokens.set_dense(0..2).unwrap();
    tokens
}

/// Increments its counters when it is called and when it is dropped.
struct Counted(Arc<Counts>);

#[derive(Default)]
struct Counts {
    called: AtomicUsize,
    dropped: AtomicUsize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counts {
    fn called(&self) -> usize {
        self.called.load(Ordering::Relaxed)
    }

    fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn closure(counts: &Arc<Counts>) -> Closure {
    let counted = Counted(Arc::clone(counts));
    let call = move || {
        counted.0.called.fetch_add(1, Ordering::Relaxed);
    };
    Closure::new(call, false).unwrap()
}

/// Does what a worker does with a ready task.
fn run(tokens: &Tokens, job: Option<JobRef>) {
    let Some(job) = job else { return };
    let index = tokens.dense.index_of_job(&job).unwrap();
    // SAFETY: the task is ready, and this thread holds its job.
    let (token, closure) = unsafe { tokens.take_dense(index) };
    tokens.run(token, false, closure);
    tokens.end_dense(index);
}

/// A registration and two resolutions at the same time: one of the three threads gets the job.
#[test]
fn a_registered_task_becomes_ready_once() {
    let model = with_preemptions(3);
    model.check(|| {
        let (tokens, counts) = (Arc::new(tokens()), Arc::new(Counts::default()));
        let resolvers: Vec<_> = (0..2)
            .map(|_| {
                let tokens = Arc::clone(&tokens);
                thread::spawn(move || run(&tokens, tokens.resolve(1).unwrap()))
            })
            .collect();
        let entry = closure(&counts);
        run(&tokens, tokens.register(1, 2, Groups::NONE, entry).unwrap());
        resolvers
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!((counts.called(), counts.dropped()), (1, 1));
        assert_eq!(tokens.wait(), Ok(()));
        assert_eq!(tokens.dense.states[1].load(Ordering::Relaxed), 0);
    });
}

/// Two registrations of one token at the same time: one succeeds.
#[test]
fn one_of_two_registrations_succeeds() {
    loom::model(|| {
        let (tokens, counts) = (Arc::new(tokens()), Arc::new(Counts::default()));
        let register = |tokens: Arc<Tokens>, counts: Arc<Counts>| {
            let registered = tokens.register(0, 1, Groups::NONE, closure(&counts));
            assert!(matches!(
                registered,
                Ok(None) | Err(TaskError::Registered { token: 0 })
            ));
            registered.is_ok()
        };
        let other = {
            let (tokens, counts) = (Arc::clone(&tokens), Arc::clone(&counts));
            thread::spawn(move || register(tokens, counts))
        };
        let own = register(Arc::clone(&tokens), Arc::clone(&counts));
        assert!(own != other.join().unwrap());
        run(&tokens, tokens.resolve(0).unwrap());
        assert_eq!((counts.called(), counts.dropped()), (1, 2));
    });
}

/// A cancellation beside a resolution: the closure is called or dropped, and it is dropped once.
#[test]
fn a_cancelled_task_is_dropped_once() {
    let model = with_preemptions(2);
    model.check(|| {
        let (tokens, counts) = (Arc::new(tokens()), Arc::new(Counts::default()));
        let entry = closure(&counts);
        assert!(
            tokens
                .register(0, 1, Groups::NONE, entry)
                .unwrap()
                .is_none()
        );
        let cancelling = {
            let tokens = Arc::clone(&tokens);
            thread::spawn(move || tokens.cancel())
        };
        run(&tokens, tokens.resolve(0).unwrap());
        let cancelled = cancelling.join().unwrap() + tokens.cancel();
        assert!(cancelled <= 2 && counts.called() <= 1);
        assert_eq!(counts.dropped(), 1);
        assert_eq!(tokens.wait(), Ok(()));
    });
}

/// Runs `add`, which uses token 0, beside a cancellation. Each of `closures` closures that `add`
/// registers is dropped once, and at most one is called.
///
/// The models have two threads: of three threads, two could wait for a registration, and loom would
/// run the two alternately without end.
fn cancel_beside(closures: usize, add: fn(&Tokens, &Arc<Counts>)) {
    with_preemptions(3).check(move || {
        let (tokens, counts) = (Arc::new(tokens()), Arc::new(Counts::default()));
        let cancelling = {
            let tokens = Arc::clone(&tokens);
            thread::spawn(move || tokens.cancel())
        };
        add(&tokens, &counts);
        let cancelled = cancelling.join().unwrap() + tokens.cancel();
        assert!(cancelled <= 2 && counts.called() <= 1);
        assert_eq!(counts.dropped(), closures);
        assert_eq!(tokens.wait(), Ok(()));
        drop(tokens);
        assert_eq!(counts.dropped(), closures);
    });
}

fn register(tokens: &Tokens, counts: &Arc<Counts>) {
    let entry = closure(counts);
    run(tokens, tokens.register(0, 1, Groups::NONE, entry).unwrap());
}

fn resolve(tokens: &Tokens) {
    run(tokens, tokens.resolve(0).unwrap());
}

#[test]
fn a_task_that_is_cancelled_after_its_registration_is_dropped_once() {
    cancel_beside(1, |tokens, counts| {
        register(tokens, counts);
        resolve(tokens);
    });
}

#[test]
fn a_task_that_is_cancelled_after_its_resolution_is_dropped_once() {
    cancel_beside(1, |tokens, counts| {
        resolve(tokens);
        register(tokens, counts);
    });
}

/// The second registration succeeds if the cancellation comes before it, and is an error otherwise.
#[test]
fn tasks_of_a_token_that_is_cancelled_and_registered_again_are_dropped_once() {
    cancel_beside(2, |tokens, counts| {
        let first = tokens.register(0, 1, Groups::NONE, closure(counts));
        assert!(first.unwrap().is_none());
        let second = tokens.register(0, 1, Groups::NONE, closure(counts));
        assert!(matches!(
            second,
            Ok(None) | Err(TaskError::Registered { token: 0 })
        ));
        resolve(tokens);
    });
}

/// A wait after a registration ends only after the task has ended, while another task of the same
/// block begins and ends.
#[test]
fn a_wait_includes_tasks_that_became_ready_before() {
    let model = with_preemptions(3);
    model.check(|| {
        let (tokens, counts) = (Arc::new(tokens()), Arc::new(Counts::default()));
        let (beside, other) = (Arc::clone(&tokens), Arc::new(Counts::default()));
        let beside = thread::spawn(move || {
            run(
                &beside,
                beside
                    .register(1, 0, Groups::NONE, closure(&other))
                    .unwrap(),
            );
        });
        let job = tokens
            .register(0, 0, Groups::NONE, closure(&counts))
            .unwrap();
        let worker = {
            let tokens = Arc::clone(&tokens);
            thread::spawn(move || run(&tokens, job))
        };
        tokens.wait_until_idle();
        assert_eq!((counts.called(), counts.dropped()), (1, 1));
        worker.join().unwrap();
        beside.join().unwrap();
    });
}
