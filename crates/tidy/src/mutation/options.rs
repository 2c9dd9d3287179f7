// SPDX-License-Identifier: MIT OR Apache-2.0
//! Command line of the mutation test (`make mutants`): the help text, and the parser of the
//! options. The first invalid argument ends the parsing with an error. A number of jobs below 1
//! counts as 1.

use std::path::PathBuf;

/// Text of `--help`.
pub const HELP: &str = "\
Replace each operator of the scheduler's C headers by its opposite and run the host tests.

usage: mutants [OPTIONS]

  --only FILE     Test the mutants of one header, such as dispatch.h; repeatable
  --function F    Test the mutants of one function; repeatable
  --sample N      Test N mutants, drawn at random
  --seed SEED     Seed of the sample (default: the time)
  --known         Test only the mutants in the list of survivors
  --jobs N        Mutants tested at a time (default: 2)
  --json FILE     Write the results to FILE (default: target/mutants/results.json)
  --list          Print the mutants and do not test them
  --help          Print this help
";

/// The options of a mutation test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Only headers with paths that end with one of these texts are mutated. If the list is empty,
    /// all headers are mutated.
    pub only: Vec<String>,
    /// Only operators in these functions are replaced. If the list is empty, operators in all
    /// functions are replaced.
    pub functions: Vec<String>,
    /// Number of mutants in a random sample; `None` tests all mutants.
    pub sample: Option<usize>,
    /// Seed of the random sample; `None` uses the current time.
    pub seed: Option<u64>,
    /// Whether only known survivors are tested.
    pub known: bool,
    /// Number of mutants that are tested at the same time.
    pub jobs: usize,
    /// Path of the file for the results; `None` uses the default path.
    pub json: Option<PathBuf>,
    /// Whether the mutants are printed instead of tested.
    pub list: bool,
    /// Whether only the help text is printed.
    pub help: bool,
}

/// Parses the arguments of the command line.
///
/// # Errors
/// If an argument is unknown, incomplete or not a number. The error names the argument.
pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        only: Vec::new(),
        functions: Vec::new(),
        sample: None,
        seed: None,
        known: false,
        jobs: 2,
        json: None,
        list: false,
        help: false,
    };
    let mut args = args.into_iter();
    while let Some(name) = args.next() {
        let mut value = || args.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--only" => options.only.push(value()?),
            "--function" => options.functions.push(value()?),
            "--sample" => options.sample = Some(number(&name, &value()?)?),
            "--seed" => options.seed = Some(number(&name, &value()?)?),
            "--known" => options.known = true,
            "--jobs" => options.jobs = number::<usize>(&name, &value()?)?.max(1),
            "--json" => options.json = Some(value()?.into()),
            "--list" => options.list = true,
            "--help" | "-h" => options.help = true,
            _ => return Err(format!("unknown argument {name}")),
        }
    }
    Ok(options)
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{name}: {value} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &str) -> Result<Options, String> {
        parse(args.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_options() {
        let options = parsed("--only a.h --only b.h --sample 5 --seed 7 --known").unwrap();
        assert_eq!(options.only, ["a.h", "b.h"]);
        assert_eq!((options.sample, options.seed), (Some(5), Some(7)));
        assert!(options.known && !options.list);
    }

    #[test]
    fn rejects_unknown_and_incomplete_arguments() {
        assert_eq!(parsed("--olny a.h").unwrap_err(), "unknown argument --olny");
        assert_eq!(parsed("--only").unwrap_err(), "--only needs a value");
        assert_eq!(
            parsed("--jobs two").unwrap_err(),
            "--jobs: two is not a number"
        );
    }
}
