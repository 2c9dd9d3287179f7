// SPDX-License-Identifier: GPL-2.0-only
//! The parsers of numbers on the command line: whole numbers, pids (1 to 4,194,304), weights (0.001
//! to 1000), cores of this machine, seconds (positive, at most a year), CPUs (0 or more) and
//! numbers without a range.
//!
//! Each error states the accepted range; the texts of the standard library's parsers ("number too
//! large to fit in target type") do not.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Upper limit of a pid (`PID_MAX_LIMIT` of the kernel on 64-bit machines).
pub const PID_MAX: i32 = 1 << 22;

/// Upper limit of a wait in seconds: a day.
const WAIT_SECONDS_MAX: f64 = 86_400.0;

/// Upper limit of a number of seconds: a year. `Duration::from_secs_f64` panics on numbers from
/// 1.8e19 on.
const SECONDS_MAX: f64 = 31_536_000.0;

/// Returns a parser of whole numbers in a range.
pub fn whole<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (min, max) = (range.start(), range.end());
            format!("the value must be a whole number from {min} to {max}")
        })
    }
}

/// Parses the number of a process or thread.
///
/// # Errors
/// The accepted range.
pub fn pid(text: &str) -> Result<i32, String> {
    let pid = text.parse().ok().filter(|pid| (1..=PID_MAX).contains(pid));
    pid.ok_or_else(|| format!("a pid must be a whole number from 1 to {PID_MAX}"))
}

/// Parses the weight of a program.
///
/// # Errors
/// The accepted range.
pub fn weight(text: &str) -> Result<f64, String> {
    let weight = text.parse().ok();
    let weight = weight.filter(|weight| usher_host::engine::WEIGHTS.contains(weight));
    weight.ok_or_else(|| "the weight of a program must be a number from 0.001 to 1000".to_owned())
}

/// Parses a number of physical cores of this machine that this process may use.
///
/// # Errors
/// The accepted range.
pub fn cores(text: &str) -> Result<u32, String> {
    let machine = crate::machine::usable_machine();
    cores_of(
        text,
        machine.map_or(u32::MAX, |machine| machine.cores.len() as u32),
    )
}

/// Parses a number of cores of a machine with `max` usable cores.
fn cores_of(text: &str, max: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|cores| (1..=max).contains(cores));
    number.ok_or_else(|| {
        format!(
            "the number of cores must be a whole number from 1 to {max}, the number of physical \
             cores that this process may use"
        )
    })
}

/// Parses a number of seconds.
///
/// # Errors
/// The accepted range.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
    let seconds = seconds.ok_or_else(|| "the number of seconds must be positive".to_owned())?;
    match seconds <= SECONDS_MAX {
        true => Ok(seconds),
        false => Err(format!(
            "the number of seconds must be at most {SECONDS_MAX}"
        )),
    }
}

/// Parses a number of CPUs that may be zero or a fraction.
///
/// # Errors
/// The accepted range.
pub fn cpus(text: &str) -> Result<f64, String> {
    let cpus = text.parse().ok();
    let cpus = cpus.filter(|cpus: &f64| cpus.is_finite() && *cpus >= 0.0);
    cpus.ok_or_else(|| "the number of CPUs must be 0 or more".to_owned())
}

/// Parses the seconds of a wait.
///
/// # Errors
/// The accepted range.
pub fn wait(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.0..=WAIT_SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| {
        format!("the number of seconds must be a number from 0 to {WAIT_SECONDS_MAX}")
    })
}

/// Parses a number whose range is checked later.
///
/// # Errors
/// The text is no number.
pub fn number(text: &str) -> Result<f64, String> {
    text.parse()
        .map_err(|_| "the value must be a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_state_the_accepted_range() {
        let copies = whole::<u32>(1..=8);
        assert_eq!(copies("8"), Ok(8));
        for text in ["0", "9", "-1", "x", "", "1.5", "99999999999999999999"] {
            let rule = "the value must be a whole number from 1 to 8";
            assert_eq!(copies(text), Err(rule.to_owned()));
        }
        assert_eq!(pid("4194304"), Ok(PID_MAX));
        for text in ["0", "-5", "4194305", "99999999999", "one"] {
            let rule = "a pid must be a whole number from 1 to 4194304";
            assert_eq!(pid(text), Err(rule.to_owned()));
        }
        assert_eq!(weight("0.5"), Ok(0.5));
        for text in ["0", "-1", "NaN", "1e9", "x"] {
            assert!(weight(text).unwrap_err().contains("from 0.001 to 1000"));
        }
        assert_eq!((cores_of("1", 8), cores_of("8", 8)), (Ok(1), Ok(8)));
        for text in ["0", "9", "-1", "x", "", "1.5", "99999999999999999999"] {
            let error = cores_of(text, 8).unwrap_err();
            assert!(
                error.contains("must be a whole number from 1 to 8,"),
                "{error}"
            );
        }
        assert_eq!((cpus("0"), cpus("1.5")), (Ok(0.0), Ok(1.5)));
        for text in ["-1", "inf", "nan", "x", ""] {
            assert!(cpus(text).unwrap_err().contains("must be 0 or more"));
        }
        assert_eq!((wait("0"), wait("2.5")), (Ok(0.0), Ok(2.5)));
        for text in ["-1", "inf", "nan", "x", "1e9"] {
            assert!(wait(text).unwrap_err().contains("from 0 to 86400"));
        }
        for text in ["0", "-1", "nan", "x"] {
            assert!(seconds(text).unwrap_err().contains("must be positive"));
        }
        for text in ["inf", "1e300", "31536001"] {
            assert!(seconds(text).unwrap_err().contains("at most 31536000"));
        }
    }
}
