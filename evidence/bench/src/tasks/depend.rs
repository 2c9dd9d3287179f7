// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `depend`: measures a Cholesky factorisation by tiles, whose tasks are ordered by the data that
//! they use, in comparison with OpenMP's `depend`.
//!
//! Bar: with tiles of 32 x 32 and 64 x 64 numbers, usher-tasks takes at most 0.8 times the time of
//! each of the two OpenMP runtimes (median over the rounds of the ratio).

use serde_json::json;

use super::contestants::{Contestant, DEPEND, Runtime};
use super::rounds::{self, RoundSettings};
use super::show;
use super::study::{Samples, forms_of, ratio_text};
use super::toolchain::Programs;
use crate::bars::{Bar, Part};

/// Numbers of tiles in a row, and numbers in a row of a tile.
const MATRICES: [[&str; 2]; 2] = [["20", "32"], ["16", "64"]];
/// Largest permitted ratio of the time of usher-tasks to the time of an OpenMP runtime.
const LIMIT: f64 = 0.8;

/// Runs the rounds, and computes the part.
pub fn run(programs: &Programs, settings: &RoundSettings) -> Part {
    let mut samples = Samples::default();
    for matrix in MATRICES {
        let workload: Vec<String> = (["cholesky"].into_iter().chain(matrix))
            .map(str::to_owned)
            .collect();
        let more = rounds::run("depend", programs, &DEPEND, settings, &workload);
        samples.all.extend(more.all);
        samples.failed.extend(more.failed);
    }
    format(&samples, &settings.threads)
}

fn case(matrix: [&str; 2]) -> String {
    format!("cholesky:{}", matrix[1])
}

fn format(samples: &Samples, threads: &[u32]) -> Part {
    let mut part = Part::new("depend", "Tasks ordered by data: Cholesky factorisation");
    let ours = DEPEND[0];
    let peers: Vec<Contestant> = [Runtime::GnuOpenMp, Runtime::LlvmOpenMp]
        .into_iter()
        .flat_map(|runtime| forms_of(&DEPEND, runtime))
        .collect();
    for matrix in MATRICES {
        let case = case(matrix);
        for peer in &peers {
            for &n in threads {
                let ratio = samples.ratio((ours, n), (*peer, n), &case);
                let what = format!(
                    "tiles of {} x {}, {}: time / time of {} ({})",
                    matrix[1],
                    matrix[1],
                    show::threads_text(n),
                    peer.label,
                    ratio_text(ratio)
                );
                let measured = ratio.map(|ratio| ratio.value);
                part.bars.push(Bar::at_most(what, measured, LIMIT, "times"));
            }
        }
        let title = format!(
            "Cholesky factorisation, tiles of {} x {}",
            matrix[1], matrix[1]
        );
        part.figures
            .push(show::figure(&title, samples, &DEPEND, threads, &case));
        part.tables
            .push(show::table(samples, &DEPEND, threads, &case, &[ours]));
    }
    part.notes = vec![
        show::method(samples),
        "Each frame restores and factorises a matrix of 640 x 640 or 1024 x 1024 numbers of double \
         precision, in 1,540 or 816 tasks. In each frame, one task submits all others; the graph is \
         built once. All runtimes run the same functions for the tiles."
            .to_owned(),
    ];
    show::failures(&mut part, samples);
    part.raw = json!(samples);
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::study::tests::samples;

    #[test]
    fn each_openmp_runtime_has_a_bar_for_each_size_of_tiles() {
        let [ours, _, gnu, llvm] = DEPEND;
        let mut all = Vec::new();
        for case in ["cholesky:32", "cholesky:64"] {
            all.push(((ours, 1), case, &[8.0, 8.0, 8.0][..]));
            all.push(((gnu, 1), case, &[10.0, 10.0, 10.0]));
            all.push(((llvm, 1), case, &[9.0, 9.0, 9.0]));
        }
        let part = format(&samples(&all), &[1]);
        let met: Vec<bool> = part.bars.iter().map(Bar::is_met).collect();
        assert_eq!(met[..4], [true, false, true, false]);
    }
}
