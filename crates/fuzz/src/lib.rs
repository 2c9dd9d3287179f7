// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzzing of parsers.
//!
//! Each parser of text or bytes that another program or user may have written is tested with random
//! variants of valid samples. For each variant the parser must return a value or an error within
//! [`HANG`], without a panic or an abort. A *target* is a test that calls [`fuzz`] for one parser.
//!
//! 1. [`inputs()`] generates inputs: a sample with up to seven edits (bytes changed, removed or
//!    repeated; words inserted that parsers often handle wrongly; parts of other samples).
//! 2. [`fuzz`] runs a target with such inputs, [`CASES`] at a time, until the target's time is
//!    over. The clock is read only between two such rounds. If the target panics, proptest searches
//!    for a smaller input with a panic in at most 4096 steps, and the test fails with that input
//!    and the seed.
//! 3. A watchdog thread checks once a second whether one input takes longer than [`HANG`]. If it
//!    does, the watchdog writes the input to a file and aborts the process.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `USHER_FUZZ_MS` | time of each target in milliseconds | [`CASES`] inputs |
//! | `USHER_FUZZ_SEED` | seed of all targets | random, printed |
//!
//! `make fuzz` runs `scripts/fuzz SECONDS`, which divides the given time among all targets. Inputs
//! are generated without coverage feedback: cargo-fuzz would need a nightly compiler, and variants
//! of the samples reach most code of these small parsers.

mod inputs;
mod watchdog;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

pub use inputs::inputs;
use watchdog::Watchdog;

/// The time after which an input counts as hanging its target. The slowest input takes
/// milliseconds, even on a loaded machine.
pub const HANG: Duration = Duration::from_secs(60);
/// Number of inputs that a target gets between two readings of the clock. If `USHER_FUZZ_MS` is not
/// set, the target stops after this number of inputs.
pub const CASES: u32 = 64;

const TIME: &str = "USHER_FUZZ_MS";
const SEED: &str = "USHER_FUZZ_SEED";

/// Size of a target's stack in bytes, equal to the default stack size of a main thread. Parsers
/// bound their recursion, but in a debug build the frames of that recursion exceed the stack of a
/// test thread.
const STACK_BYTES: usize = 8 << 20;

/// Runs `target` with random variants of the samples. Prints the seed, and at the end the number of
/// inputs.
///
/// # Panics
/// If the target panicked; the message contains the reduced input and the seed. Also if the thread
/// of the target cannot be started.
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
        // Each round needs a new runner, because a runner that has finished its cases runs no more.
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

/// Returns the seed, which is the same for all targets of a process: `USHER_FUZZ_SEED`, or a random
/// number.
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

/// Returns the 32 bytes that seed the generator: 8 bytes of `seed`, and the bytes of the target's
/// name folded into 24 bytes.
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
        // Of 64 inputs at least one is almost certainly longer than 10 bytes, because edits repeat
        // and insert bytes.
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
