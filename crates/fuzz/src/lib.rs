// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzzing of parsers.
//!
//! Every parser of text or bytes that others may have written gets random changes of
//! valid samples. It must return a value or an error: no panic, no abort, and an
//! answer within [`HANG`]. A *target* is a test that calls [`fuzz`].
//!
//! 1. [`inputs()`] makes inputs: a sample with up to eight edits (bytes changed, removed,
//!    repeated; words inserted that parsers find hard; parts of other samples).
//! 2. [`fuzz`] runs a target with such inputs until its time is over. proptest reduces
//!    an input on which the target panics.
//! 3. A watchdog thread ends the process where one input takes longer than [`HANG`], and
//!    writes that input to a file.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `USHER_FUZZ_MS` | time of each target in milliseconds | [`CASES`] inputs |
//! | `USHER_FUZZ_SEED` | seed of all targets | random, printed |
//!
//! `scripts/fuzz SECONDS` divides a time among all targets; `make fuzz` runs it. There is
//! no coverage feedback: cargo-fuzz needs a nightly compiler, and these parsers are small
//! enough to be reached from samples.

mod inputs;
mod watchdog;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

pub use inputs::inputs;
use watchdog::Watchdog;

/// The time after which an input is taken to hang its target. A loaded machine
/// needs milliseconds for the slowest input.
pub const HANG: Duration = Duration::from_secs(60);
/// Number of inputs of a target without a given time, and between two readings of the clock.
pub const CASES: u32 = 64;

const TIME: &str = "USHER_FUZZ_MS";
const SEED: &str = "USHER_FUZZ_SEED";

/// Bytes of stack for a target: those of a program's main thread. Parsers bound their
/// recursion, but the frames of unoptimised code do not fit a test's thread.
const STACK_BYTES: usize = 8 << 20;

/// Runs `target` with changes of the samples.
///
/// # Panics
/// The target panicked: with the reduced input and the seed. Or no thread starts.
pub fn fuzz(name: &str, samples: &[&[u8]], target: impl FnMut(&[u8]) + Send) {
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES);
        let started = thread.spawn_scoped(scope, || fuzz_here(name, samples, target));
        started.map(std::thread::ScopedJoinHandle::join)
    });
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => resume_unwind(panic),
        Err(error) => panic!("{name}: starting the thread of the fuzz target: {error}"),
    }
}

fn fuzz_here(name: &str, samples: &[&[u8]], mut target: impl FnMut(&[u8])) {
    let time = number(TIME).map(Duration::from_millis);
    let seed = seed();
    eprintln!("{name}: {SEED}={seed}");
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        max_shrink_iters: 4096,
        ..Config::default()
    };
    let inputs = inputs(samples);
    let watchdog = Watchdog::start(name);
    let target = std::cell::RefCell::new(&mut target);
    let begun = Instant::now();
    for round in 0.. {
        // A runner that has passed runs nothing more.
        let seed_of_round = seed_of(seed.wrapping_add(round), name);
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed_of_round);
        let mut runner = TestRunner::new_with_rng(config.clone(), rng);
        let outcome = runner.run(&inputs, |input| {
            let _guard = watchdog.watch(&input);
            (target.borrow_mut())(&input);
            Ok::<(), TestCaseError>(())
        });
        if let Err(failure) = outcome {
            panic!("{name}, {SEED}={seed}, round {round}: {failure}");
        }
        let passed = begun.elapsed();
        if time.is_none_or(|time| passed >= time) {
            let count = (round + 1) * u64::from(CASES);
            eprintln!(
                "{name}: tested {count} inputs in {:.1} s",
                passed.as_secs_f64()
            );
            return;
        }
    }
}

/// One seed for all targets of a process.
fn seed() -> u64 {
    static RANDOM: OnceLock<u64> = OnceLock::new();
    let random = || *RANDOM.get_or_init(|| RandomState::new().build_hasher().finish());
    number(SEED).unwrap_or_else(random)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable)
        .ok()
        .filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| {
        panic!("the environment variable {variable} must be a number, not {text}")
    }))
}

/// The generator's 32 bytes: the seed, and the first bytes of the target's name.
fn seed_of(seed: u64, name: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    for (at, byte) in name.bytes().enumerate() {
        bytes[8 + at % 24] ^= byte.rotate_left(at as u32 / 24);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_is_found_and_its_seed_named() {
        let failing = || {
            fuzz("failing", &[b"abcdef"], |input| {
                assert!(input.len() < 10, "long")
            });
        };
        // One of 64 inputs is longer with near certainty: words are repeated.
        let found = catch_unwind(AssertUnwindSafe(failing)).unwrap_err();
        let message = found.downcast::<String>().unwrap();
        assert!(message.contains(SEED), "{message}");
    }

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        assert_eq!(seed_of(7, "a"), seed_of(7, "a"));
        assert_ne!(seed_of(7, "a"), seed_of(7, "b"));
        assert_ne!(seed_of(7, "a"), seed_of(8, "a"));
    }
}
