// SPDX-License-Identifier: GPL-2.0-only
//! `usher replay`: passes the recorded observations of a daemon to the recorded policy again, and
//! checks that the policy returns the recorded decisions.
//!
//! The command prints the first decision that differs beside the recorded decision, and fails with
//! exit status 125. A record of an unknown policy is an error, too. An incomplete last line, as a
//! killed daemon leaves it, is reported and ignored.
//!
//! The replay keeps one line of the record in memory at a time. The time is that of the policy for
//! all steps; the command does not wait between steps.

use std::io::BufReader;
use std::path::PathBuf;

use anyhow::Context;
use usher_control::RecordError;
use usher_policy::Policy;
use usher_report::text;

use crate::answers::{ReplayAnswer, ReplayDifference};
use crate::failure::{self, Outcome};
use crate::output::Output;

/// Runs a policy again on the observations of a record, and compares its decisions with the
/// recorded decisions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A record contains the observations and the decisions of a policy. A policy uses nothing
but its observations, so the same observations give the same decisions on any machine. A
decision that differs is a bug of Usher: report it with the record, which is sufficient to
find the cause.

Examples:
  usher daemon --record run.jsonl
  usher replay run.jsonl")]
pub struct Args {
    /// Record written by `usher daemon --record`
    #[arg(value_name = "FILE")]
    record: PathBuf,
}

/// Replays the record.
pub fn run(args: &Args, out: Output) -> Outcome {
    let path = args.record.display();
    let opening = || format!("opening the record '{path}'");
    let file = usher_topology::file::open(&args.record).with_context(opening)?;
    let mut unknown = None;
    let steps = usher_control::replay(BufReader::new(file), |head| {
        // Records of simulations may name policies that exist only in the simulator.
        usher_sim::fuzz::policy(&head.policy, &head.topology).unwrap_or_else(|| {
            unknown = Some(head.policy.clone());
            Box::new(NoPolicy)
        })
    });
    if let Some(policy) = unknown {
        anyhow::bail!(
            "the record '{path}' cannot be replayed, because this version of usher has no policy \
             '{policy}': use the version that wrote the record"
        );
    }
    if let Err(RecordError::Differs { step, decisions }) = &steps {
        let (then, now) = &**decisions;
        out.json(&ReplayAnswer {
            steps: *step,
            same: false,
            difference: Some(ReplayDifference {
                step: *step,
                recorded: then.clone(),
                now: now.clone(),
            }),
        })?;
    }
    let steps = match steps {
        Err(RecordError::CutShort { steps }) => {
            failure::print_error(&format!(
                "the last line of '{path}' is incomplete and was ignored"
            ));
            Ok(steps)
        }
        steps => steps,
    };
    let steps = steps.with_context(|| format!("replaying '{path}'"))?;
    let answer = ReplayAnswer {
        steps,
        same: true,
        difference: None,
    };
    out.answer(&answer, || {
        format!(
            "{}; all replayed decisions equal the recorded decisions",
            text::count(steps, "decision")
        )
    })?;
    Ok(0)
}

/// Stands in for a missing policy; its decisions are not used.
struct NoPolicy;

impl Policy for NoPolicy {
    fn name(&self) -> &'static str {
        "none"
    }

    fn decide(&mut self, _: &usher_model::Observation) -> usher_model::Decision {
        usher_model::Decision::default()
    }
}
