// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats the results of a mutation test: as a table in Markdown for documents, and as JSON.
//! Shares are per cent of the mutants that compile to other object code than the original; without
//! such mutants, the share is 100 %. The time is linear in the number of mutants.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::run::{Outcome, Tested};

/// Numbers of mutants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of mutants.
    pub mutants: usize,
    /// Number of mutants that compile to other object code than the original.
    pub compiled: usize,
    /// Number of mutants that compile to the same object code as the original.
    pub equal: usize,
    /// Number of mutants with which a test fails.
    pub caught: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        self.mutants += 1;
        match outcome {
            Outcome::Rejected => {}
            Outcome::Equal => self.equal += 1,
            Outcome::Caught(_) => {
                self.compiled += 1;
                self.caught += 1;
            }
            Outcome::Survived => self.compiled += 1,
        }
    }

    /// Returns the number of mutants in `compiled` with which all tests pass.
    pub fn survivors(&self) -> usize {
        self.compiled - self.caught
    }

    /// Returns the caught mutants in per cent of `compiled`.
    pub fn percent(&self) -> f64 {
        match self.compiled {
            0 => 100.0,
            compiled => 100.0 * self.caught as f64 / compiled as f64,
        }
    }

    fn row(&self, name: &str) -> String {
        format!(
            "| {name} | {} | {} | {} | {} | {} | {:.1} % |\n",
            self.mutants,
            self.equal,
            self.compiled,
            self.caught,
            self.survivors(),
            self.percent()
        )
    }
}

/// Returns the sum of all results.
pub fn total(tested: &[Tested]) -> Counts {
    let mut counts = Counts::default();
    tested.iter().for_each(|tested| counts.add(&tested.outcome));
    counts
}

/// Returns a table in Markdown, with one row per file and per class of operators.
pub fn table(tested: &[Tested]) -> String {
    let mut files: BTreeMap<String, Counts> = BTreeMap::new();
    let mut classes: BTreeMap<String, Counts> = BTreeMap::new();
    for tested in tested {
        let file = tested.mutant.file.rsplit('/').next().unwrap_or_default();
        files
            .entry(format!("`{file}`"))
            .or_default()
            .add(&tested.outcome);
        let class = format!("{:?}", tested.mutant.class()).to_lowercase();
        classes.entry(class).or_default().add(&tested.outcome);
    }
    let head = "| mutants | same object code | compiled | caught | survivors | caught of compiled |\n\
                |---|--:|--:|--:|--:|--:|--:|\n";
    let rows = |all: &BTreeMap<String, Counts>| -> String {
        all.iter().map(|(name, counts)| counts.row(name)).collect()
    };
    let sum = total(tested).row("all");
    format!(
        "| file {head}{}{sum}\n| operators {head}{}",
        rows(&files),
        rows(&classes)
    )
}

/// Returns all results as JSON.
pub fn json(tested: &[Tested]) -> Value {
    let sum = total(tested);
    let mutants = tested.iter().map(|tested| {
        let (outcome, test) = match &tested.outcome {
            Outcome::Rejected => ("does not compile", None),
            Outcome::Equal => ("same object code", None),
            Outcome::Caught(test) => ("caught", Some(test)),
            Outcome::Survived => ("survived", None),
        };
        json!({
            "file": tested.mutant.file,
            "line_number": tested.mutant.number,
            "function": tested.mutant.function,
            "line": tested.mutant.line,
            "column": tested.mutant.column,
            "change": tested.mutant.change(),
            "outcome": outcome,
            "test": test,
        })
    });
    json!({
        "mutants": sum.mutants,
        "same_object_code": sum.equal,
        "compiled": sum.compiled,
        "caught": sum.caught,
        "caught_percent": sum.percent(),
        "results": mutants.collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::mutants::mutants;
    use super::*;

    #[test]
    fn counts_per_file_and_class() {
        let all = mutants("a/b.h", "a < b; c && d; e + f; g | h;");
        let outcomes = [
            Outcome::Survived,
            Outcome::Equal,
            Outcome::Caught("test".to_owned()),
            Outcome::Rejected,
        ];
        let tested: Vec<Tested> = all
            .into_iter()
            .zip(outcomes)
            .map(|(mutant, outcome)| Tested { mutant, outcome })
            .collect();
        let table = table(&tested);
        assert!(
            table.contains("| `b.h` | 4 | 1 | 2 | 1 | 1 | 50.0 % |\n"),
            "{table}"
        );
        assert!(
            table.contains("| arithmetic | 1 | 0 | 1 | 1 | 0 | 100.0 % |\n"),
            "{table}"
        );
        let json = json(&tested);
        assert_eq!(json["caught"], 1);
        assert_eq!(json["results"][2]["test"], "test");
    }
}
