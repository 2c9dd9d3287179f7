// SPDX-License-Identifier: MIT OR Apache-2.0
//! Summary of a mix: statistics over its rounds, and the conclusion as a sentence.
//!
//! 1. [`antt`] and [`across_mixes`] compute means over rounds and over mixes, with confidence
//!    intervals.
//! 2. [`headline`] selects the candidate with the lowest ratio to the baseline. If the baseline is
//!    Linux and this candidate gave no seats in any round, the headline is "No difference".
//!    Otherwise, if the 95 % interval of this ratio excludes 1, the sentence names the better
//!    policy. If the interval contains 1, the sentence states that no policy is measurably better.
//!    Without an interval (fewer than three rounds), the sentence states that there are too few
//!    rounds. A simulation is judged by the ratio alone, and ratios within 0.5 % of 1 count as
//!    equal.
//! 3. Remarks name abstentions, failures, noise, too few rounds, and programs that take less than
//!    0.1 s alone.
//!
//! Means over rounds and over mixes are geometric; the ratio of two means is therefore the mean of
//! the ratios. An estimate with at least three values costs one bootstrap (`stats`); all other
//! functions cost a pass over rounds, programs or spans.

use std::collections::BTreeMap;

use usher_model::Curve;

use crate::data::{MixResult, PolicyResult, PolicyRole, RoundResult, SpanMode};
use crate::stats::{self, Estimate, NoiseBand, Statistic};
use crate::text;

/// The values of a quantity over the rounds: geometric mean, minimum and maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Geometric mean.
    pub mean: f64,
    /// Minimum.
    pub low: f64,
    /// Maximum.
    pub high: f64,
    /// Number of rounds.
    pub n: usize,
}

/// The spread of values; `None` for no values or a value that is not finite and > 0.
pub fn spread(values: &[f64]) -> Option<Spread> {
    Some(Spread {
        mean: stats::geometric_mean(values)?,
        low: values.iter().copied().fold(f64::INFINITY, f64::min),
        high: values.iter().copied().fold(0.0, f64::max),
        n: values.len(),
    })
}

/// Returns the geometric mean of a policy's ANTT over its rounds, with its interval.
pub fn antt(mix: &MixResult, policy: &PolicyResult) -> Option<Estimate> {
    let seed = mix.protocol.seed;
    stats::estimate(&policy.antts(), Statistic::GeometricMean, seed)
}

/// The noise band of a mix, from the two runs of the baseline in each round (A/A).
pub fn aa_band(mix: &MixResult) -> Option<NoiseBand> {
    let again = mix
        .policies
        .iter()
        .find(|p| p.role == PolicyRole::BaselineAgain)?;
    let rounds = again.rounds.iter().zip(&mix.baseline()?.rounds);
    let pairs: Vec<_> = rounds
        .filter_map(|(a, b)| Some((a.antt?, b.antt?)))
        .collect();
    stats::aa_band(&pairs)
}

/// Ratio of a policy's ANTT to the baseline over several mixes: the geometric mean of the mixes'
/// ratios, bootstrapped over mixes. Mixes without a ratio are skipped.
pub fn across_mixes<'a>(
    mixes: impl IntoIterator<Item = &'a MixResult>,
    policy: &str,
    seed: u64,
) -> Option<Estimate> {
    let ratio = |mix: &MixResult| {
        let comparison = mix.policy(policy)?.comparison.as_ref()?;
        Some(comparison.antt?.value)
    };
    let ratios: Vec<f64> = mixes.into_iter().filter_map(ratio).collect();
    stats::estimate(&ratios, Statistic::GeometricMean, seed)
}

/// The number of cores (by capacity) that the program owned for most of the round's time. `None` if
/// it shared CPUs most of the time, or nothing is known.
pub fn usual_cores(mix: &MixResult, round: &RoundResult, program: &str) -> Option<f64> {
    let mut held: BTreeMap<u64, f64> = BTreeMap::new();
    let spans = round.timeline.iter();
    for span in spans.filter(|s| s.program == program && s.borrowed_from.is_none()) {
        let cores = match span.mode {
            SpanMode::Seated => mix.machine.topology.capacity_of(&span.cpus),
            SpanMode::Shared | SpanMode::InTurn => 0.0,
            SpanMode::Frozen => continue,
        };
        let milli_cores = (cores * 1e3).round() as u64;
        *held.entry(milli_cores).or_default() += (span.end_s - span.start_s).max(0.0);
    }
    let longest = held.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    (longest.0 > 0).then_some(longest.0 as f64 / 1e3)
}

/// The conclusion of a mix with its qualifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headline {
    /// The best policy and its advantage.
    pub sentence: String,
    /// Name of the policy that is best at the 95 % level, if any.
    pub winner: Option<String>,
    /// Abstentions, noise, failures: one sentence each.
    pub remarks: Vec<String>,
}

/// The conclusion of a mix. [`MixResult::compare`] must have been called.
pub fn headline(mix: &MixResult) -> Headline {
    let sentence = match mix.baseline() {
        Some(baseline) => against(mix, baseline),
        None => without_baseline(mix),
    };
    let remarks = too_short(mix)
        .into_iter()
        .chain(few_rounds(mix))
        .chain(noise(mix))
        .chain(abstentions(mix))
        .chain(mix.policies.iter().filter_map(failures))
        .collect();
    Headline {
        sentence,
        winner: winner(mix),
        remarks,
    }
}

/// Returns the candidate with the lowest ratio if the interval of that ratio lies below 1, or the
/// baseline if the interval lies above 1.
fn winner(mix: &MixResult) -> Option<String> {
    let (best, ratio) = best(mix)?;
    let baseline = mix.baseline()?;
    if equals_linux(best, baseline) {
        return None;
    }
    if ratio.is_below(1.0) {
        return Some(best.name.clone());
    }
    ratio.is_above(1.0).then(|| baseline.name.clone())
}

/// The candidate with the lowest ratio to the baseline.
fn best(mix: &MixResult) -> Option<(&PolicyResult, Estimate)> {
    let candidates = mix
        .policies
        .iter()
        .filter(|p| p.role == PolicyRole::Candidate);
    let judged = candidates.filter_map(|p| Some((p, p.comparison.as_ref()?.antt?)));
    judged.min_by(|a, b| a.1.value.total_cmp(&b.1.value))
}

fn against(mix: &MixResult, baseline: &PolicyResult) -> String {
    let Some((best, ratio)) = best(mix) else {
        return format!(
            "No policy could be compared with {}, because no other policy finished a round.",
            baseline.label
        );
    };
    let antt_of = |policy| text::number(antt(mix, policy).map(|e| e.value), 2);
    let figures = format!(
        "an ANTT of {} against {}, {}{}",
        antt_of(best),
        antt_of(baseline),
        text::change(ratio.value),
        interval(&ratio),
    );
    let (name, base) = (&best.label, &baseline.label);
    if equals_linux(best, baseline) {
        return format!(
            "No difference: {name} gave no seats in any round, so that the programs ran as under \
             {base}, with {figures}."
        );
    }
    if ratio.is_below(1.0) {
        let verb = if ratio.reaches_level() {
            "beats"
        } else {
            "is ahead of"
        };
        format!("{name} {verb} {base}, with {figures}.")
    } else if ratio.is_above(1.0) {
        let verb = if ratio.reaches_level() { "is" } else { "seems" };
        format!("{base} {verb} the best policy; the next best, {name}, has {figures}.")
    } else if ratio.high.is_some() {
        format!("No policy is measurably better than {base}; the closest, {name}, has {figures}.")
    } else if !mix.simulated {
        format!("There are too few rounds for a conclusion; {name} has {figures}.")
    } else if is_alike(ratio.value) {
        format!("{name} and {base} are equally good; {name} has {figures}.")
    } else if ratio.value < 1.0 {
        // A simulation with one seed has no interval, so the sentence states the figures without a
        // level.
        format!("{name} is better than {base}, with {figures}.")
    } else {
        format!("{base} is the best policy; the next best, {name}, has {figures}.")
    }
}

/// Returns whether the baseline is Linux, and the policy left the programs to the kernel in every
/// round. Any difference between the two is then noise or the cost of the policy's measurements.
fn equals_linux(policy: &PolicyResult, baseline: &PolicyResult) -> bool {
    baseline.name == "linux" && policy.abstentions() == policy.rounds.len()
}

/// Returns whether the ratio differs from 1 by less than the accuracy of the simulation's model.
fn is_alike(ratio: f64) -> bool {
    (ratio - 1.0).abs() < 0.005
}

fn interval(ratio: &Estimate) -> String {
    match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => format!(
            " (95\u{a0}% interval {} to {}, {})",
            text::change(low),
            text::change(high),
            text::count(ratio.n, "round")
        ),
        _ => format!(" ({}, no interval)", text::count(ratio.n, "round")),
    }
}

fn without_baseline(mix: &MixResult) -> String {
    let known = mix
        .policies
        .iter()
        .filter_map(|p| Some((p, antt(mix, p)?.value)));
    match known.min_by(|a, b| a.1.total_cmp(&b.1)) {
        Some((best, antt)) => format!(
            "{} has the lowest ANTT, {}; the mix has no baseline to compare this policy with.",
            best.label,
            text::number(antt, 2)
        ),
        None => {
            "No policy has an ANTT, because in each round some program did not finish.".to_owned()
        }
    }
}

/// Minimum duration of a program alone, in seconds, for a comparison. In shorter runs the start of
/// the program dominates.
const COMPARABLE_SECONDS_MIN: f64 = 0.1;

/// A remark that names the programs that are too short to compare.
fn too_short(mix: &MixResult) -> Option<String> {
    let is_short = |seconds: f64| seconds < COMPARABLE_SECONDS_MIN;
    let programs = mix.programs.iter();
    let short: Vec<String> = programs
        .filter(|program| program.alone_best_seconds.is_some_and(is_short))
        .map(|program| program.name.clone())
        .collect();
    let (take, they) = match short.len() {
        0 => return None,
        1 => ("takes", "it is"),
        _ => ("take", "they are"),
    };
    Some(format!(
        "{} {take} less than {}\u{a0}s alone; {they} too short to compare.",
        text::list(&short),
        text::short(COMPARABLE_SECONDS_MIN, 2)
    ))
}

/// A note for a program measured alone that is too short, from its curve of runs per second.
pub fn too_short_note(curve: &Curve) -> Option<String> {
    let best = curve.points().iter().map(|p| p.rate).fold(0.0, f64::max);
    (best * COMPARABLE_SECONDS_MIN > 1.0).then(|| {
        format!(
            "the program takes less than {}\u{a0}s, which is too short to determine its \
             scalability: give the program more work",
            text::short(COMPARABLE_SECONDS_MIN, 2)
        )
    })
}

fn few_rounds(mix: &MixResult) -> Option<String> {
    let comparisons = mix.policies.iter().filter_map(|p| p.comparison.as_ref());
    let least = comparisons.filter_map(|c| c.antt).map(|e| e.n).min()?;
    (stats::INTERVAL_PAIRS..stats::LEVEL_PAIRS)
        .contains(&least)
        .then(|| {
            format!(
                "With only {}, a confidence interval is about as wide as the range of the \
                 measured values and contains the true value with less than 95 % probability; 95 \
                 % require {} rounds.",
                text::count(least, "round"),
                stats::LEVEL_PAIRS
            )
        })
}

fn noise(mix: &MixResult) -> Option<String> {
    let band = aa_band(mix)?;
    Some(format!(
        "Noise: two rounds of the same policy, {}, differ by up to {} (A/A comparison, {}).",
        mix.baseline()?.label,
        text::change(band.high).trim_start_matches('+'),
        text::count(band.pairs, "pair")
    ))
}

/// Returns a remark for each candidate that abstained, or one remark that no candidate abstained.
fn abstentions(mix: &MixResult) -> Vec<String> {
    let remarks: Vec<String> = mix.policies.iter().filter_map(abstention).collect();
    match remarks.is_empty() && mix.policies.iter().any(|p| p.role == PolicyRole::Candidate) {
        true => vec!["Every policy gave seats in every round.".to_owned()],
        false => remarks,
    }
}

fn abstention(policy: &PolicyResult) -> Option<String> {
    let times = policy.abstentions();
    if times == 0 || policy.role != PolicyRole::Candidate {
        return None;
    }
    let because = policy
        .rounds
        .iter()
        .find_map(|r| r.abstained_because.as_deref());
    let rounds = match times == policy.rounds.len() {
        true => "every round".to_owned(),
        false => format!("{times} of {}", text::count(policy.rounds.len(), "round")),
    };
    Some(format!(
        "{} gave no seats in {rounds}: {}.",
        policy.label,
        because.map_or("the policy reported no reason", reason_alone)
    ))
}

/// Returns a policy's reason without the prefix that repeats the surrounding sentence.
fn reason_alone(reason: &str) -> &str {
    let prefixes = [
        "all programs share all CPUs: ",
        "no program has a seat, and all programs share all CPUs: ",
    ];
    let mut reasons = prefixes
        .iter()
        .filter_map(|prefix| reason.strip_prefix(prefix));
    reasons.next().unwrap_or(reason).trim_end_matches('.')
}

fn failures(policy: &PolicyResult) -> Option<String> {
    let programs = policy.rounds.iter().flat_map(|round| &round.programs);
    let mut failed: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for program in programs {
        if let Some(why) = &program.failure {
            failed.entry(&program.name).or_insert((0, why)).0 += 1;
        }
    }
    let each: Vec<String> = failed
        .into_iter()
        .map(|(name, (times, why))| format!("{name} in {} ({why})", text::count(times, "round")))
        .collect();
    (!each.is_empty()).then(|| {
        format!(
            "Programs that failed under {}: {}.",
            policy.label,
            text::list(&each)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_curves_of_too_short_runs() {
        let note = |seconds: f64| {
            let curve = Curve::from_rates(&[(1, 0.1), (2, 1.0 / seconds)].into()).unwrap();
            too_short_note(&curve)
        };
        assert!(note(0.09).unwrap().contains("less than 0.1\u{a0}s"));
        assert_eq!(note(0.11), None);
    }
}
