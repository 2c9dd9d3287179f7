// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of report pages: they are well formed, load no external resources, agree with the data,
//! have no overlapping texts, and handle hostile and missing data.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is a failure

mod figures;
mod sample;

use std::fs;
use std::path::Path;

use figures::{check_figures, figures_of};
use scraper::{Html, Selector};
use usher_model::{Curve, Topology};
use usher_report::data::{MixResult, PolicyRole};
use usher_report::figure::{self, CurveFigure};
use usher_report::html::{self, Cell, Item, Profile, Section};

/// Parses a page, and applies all checks that hold for any page.
fn check(page: &str) -> Html {
    let parsed = Html::parse_document(page);
    assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
    for banned in [
        "NaN", "inf\"", "inf ", "http://", "https://", "@import", "<link", "src=",
    ] {
        assert!(!page.contains(banned), "the page contains {banned}");
    }
    let ids: Vec<_> = select(&parsed, "[id]")
        .iter()
        .map(|e| e.attr("id").unwrap().to_owned())
        .collect();
    let mut unique = ids.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), ids.len(), "ids twice: {ids:?}");
    check_figures(page);
    parsed
}

fn select<'a>(page: &'a Html, selector: &str) -> Vec<scraper::ElementRef<'a>> {
    page.select(&Selector::parse(selector).unwrap()).collect()
}

fn text(element: scraper::ElementRef) -> String {
    element.text().collect::<String>().trim().to_owned()
}

fn save(name: &str, page: &str) {
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), page).unwrap();
}

#[test]
fn checks_detect_faulty_pages() {
    assert!(
        !Html::parse_document("<!DOCTYPE html><i class=a class=b></i>")
            .errors
            .is_empty()
    );
    let svg = |inner: &str| format!("<svg viewBox=\"0 0 100 100\">{inner}</svg>");
    for bad in [
        "<text x=\"10\" y=\"20\">one</text><text x=\"14\" y=\"24\">two</text>",
        "<rect x=\"NaN\"></rect>",
        "<rect x=\"120\"></rect>",
        "<rect>",
    ] {
        let figure = svg(bad);
        assert!(
            std::panic::catch_unwind(|| check_figures(&figure)).is_err(),
            "{bad}"
        );
    }
    check_figures(&svg(
        "<text x=\"10\" y=\"20\">one</text><text x=\"10\" y=\"40\">two</text>",
    ));
}

#[test]
fn sample_pages_pass_all_checks() {
    for (name, mix) in [
        ("small.html", sample::small()),
        ("paper.html", sample::paper()),
        ("crowd.html", sample::crowd()),
        ("huge.html", sample::huge()),
    ] {
        let page = html::page(&mix);
        save(name, &page);
        let parsed = check(&page);
        let banner = select(&parsed, ".banner");
        assert_eq!(banner.len(), usize::from(mix.simulated));
        let timelines = figures_of(&page)
            .iter()
            .filter(|f| f.contains("Seats over time under"))
            .count();
        // Each figure exists in a wide and in a narrow form.
        assert_eq!(timelines, 2 * (mix.policies.len() - 1));
    }
}

/// Width of the content of a page on a phone of 390 CSS pixels, with margins of 16 pixels.
const PHONE_CONTENT: f64 = 358.0;

#[test]
fn pages_fit_a_phone() {
    for mix in [sample::small(), sample::paper(), sample::crowd()] {
        let page = html::page(&mix);
        let parsed = check(&page);
        let of = |class: &str| select(&parsed, class).len();
        assert_eq!(of("svg.wide"), of("svg.narrow"));
        assert_eq!(2 * of("svg.wide"), of("svg.figure"));
        for figure in select(&parsed, "svg.narrow, svg.panel") {
            let size = figure.attr("viewbox").or(figure.attr("viewBox")).unwrap();
            let width: f64 = size.split(' ').nth(2).unwrap().parse().unwrap();
            assert!(width <= PHONE_CONTENT, "{size}");
        }
        // On a phone, each cell is a line that begins with its heading.
        let cells = select(&parsed, "td");
        assert!(cells.iter().all(|cell| cell.attr("data-label").is_some()));
        assert!(!page.contains("min-width: 8"));
    }
}

#[test]
fn hatching_marks_shared_time() {
    let mut mix = sample::small();
    let policy = mix.policies.iter().position(|p| p.name == "linux").unwrap();
    let hatched = |mix: &MixResult| {
        let policy = &mix.policies[policy];
        let round = policy.typical_round().unwrap();
        let figure = figure::timeline(mix, policy, round, 40.0).into_string();
        figure.matches("class=\"hatch\"").count()
    };
    // Two programs share both CPUs: two bands, in two widths.
    assert_eq!(hatched(&mix), 4);
    for round in &mut mix.policies[policy].rounds {
        round.timeline.truncate(1);
    }
    assert_eq!(hatched(&mix), 0, "one program shares nothing");
}

#[test]
fn the_headline_of_abstentions_is_no_difference() {
    let mut mix = sample::small();
    mix.policies
        .retain(|p| p.role != PolicyRole::Candidate || p.name == "usher");
    mix.compare();
    let page = html::page(&mix);
    let sentence = text(select(&check(&page), ".sentence")[0]);
    assert!(
        sentence.starts_with("No difference: usher gave no seats in any round"),
        "{sentence}"
    );
    // An apparent gain of a policy without seats is no gain.
    for round in &mut mix.policies.last_mut().unwrap().rounds {
        round.antt = round.antt.map(|antt| antt * 0.5);
    }
    mix.compare();
    let headline = usher_report::summary::headline(&mix);
    assert!(headline.sentence.starts_with("No difference"));
    assert_eq!(headline.winner, None);
    for round in &mut mix.policies.last_mut().unwrap().rounds {
        round.abstained = false;
    }
    let headline = usher_report::summary::headline(&mix);
    assert_eq!(headline.winner.as_deref(), Some("usher"));
}

#[test]
fn same_data_give_same_page() {
    assert_eq!(html::page(&sample::small()), html::page(&sample::small()));
}

#[test]
fn tables_agree_with_the_data() {
    let mix = sample::paper();
    let parsed = check(&html::page(&mix));
    let rows: Vec<Vec<String>> = select(&parsed, "table.grouped tbody tr")
        .into_iter()
        .map(|row| {
            row.select(&Selector::parse("td").unwrap())
                .map(text)
                .collect()
        })
        .collect();
    assert_eq!(rows.len(), mix.programs.len() * mix.policies.len());
    let mut row = rows.iter();
    for program in &mix.programs {
        for policy in &mix.policies {
            let cells = row.next().unwrap();
            let ntts: Vec<f64> = policy
                .rounds
                .iter()
                .filter_map(|r| r.program(&program.name)?.ntt)
                .collect();
            let product: f64 = ntts.iter().product();
            let mean = product.powf(1.0 / ntts.len() as f64);
            assert_eq!(
                (cells[2].as_str(), cells[3].clone()),
                (policy.label.as_str(), format!("{mean:.3}"))
            );
            let runs: usize = policy
                .rounds
                .iter()
                .map(|r| r.program(&program.name).unwrap().seconds.len())
                .sum();
            assert_eq!(cells[7], runs.to_string());
        }
    }
    let sentence = text(select(&parsed, ".sentence")[0]);
    assert!(
        sentence.starts_with("usher beats linux, with an ANTT of "),
        "{sentence}"
    );
}

#[test]
fn bar_lengths_are_proportional_to_values() {
    let mix = sample::paper();
    let both = figure::antt(&mix).into_string();
    for figure in figures_of(&both) {
        check_bars(&mix, figure);
    }
}

fn check_bars(mix: &MixResult, figure: &str) {
    let svg = roxmltree::Document::parse(figure).unwrap();
    let bars = svg
        .descendants()
        .filter(|n| n.attribute("class").is_some_and(|c| c.ends_with("solid")));
    let widths: Vec<f64> = bars
        .map(|n| n.attribute("width").unwrap().parse().unwrap())
        .collect();
    let means: Vec<f64> = mix
        .policies
        .iter()
        .map(|p| (p.antts().iter().map(|a| a.ln()).sum::<f64>() / p.rounds.len() as f64).exp())
        .collect();
    assert_eq!(widths.len(), means.len());
    for (width, mean) in widths.iter().zip(&means) {
        assert!((width / widths[0] - mean / means[0]).abs() < 1e-3);
    }
}

#[test]
fn page_gives_reason_for_abstention() {
    let page = html::page(&sample::small());
    assert!(page.contains(
        "usher gave no seats in every round: the best seating is predicted to win 0.4 %"
    ));
}

#[test]
fn hostile_names_are_escaped() {
    let markup = "</title></svg><script>alert(1)</script>&\"'<!--";
    let mut mix = sample::small();
    mix.title = markup.to_owned();
    mix.description = markup.to_owned();
    mix.machine.host = markup.to_owned();
    mix.protocol.command = markup.to_owned();
    let old = mix.programs[0].name.clone();
    for policy in &mut mix.policies {
        policy.label = format!("{}{markup}", policy.name);
        for round in &mut policy.rounds {
            round.notes.push((0.1, markup.to_owned()));
            round.abstained_because = Some(markup.to_owned());
            round.programs[0].failure = Some(markup.to_owned());
            round
                .programs
                .iter_mut()
                .filter(|p| p.name == old)
                .for_each(|p| p.name = markup.to_owned());
            round
                .timeline
                .iter_mut()
                .filter(|s| s.program == old)
                .for_each(|s| s.program = markup.to_owned());
        }
    }
    mix.programs[0].name = markup.to_owned();
    mix.programs[0].command = markup.to_owned();
    mix.programs[0].class = markup.to_owned();
    mix.programs[0].curve_source = markup.to_owned();
    mix.compare();
    let parsed = check(&html::page(&mix));
    assert!(select(&parsed, "script").is_empty());
    assert_eq!(text(select(&parsed, "h1")[0]), markup);
}

fn empty(mut mix: MixResult) -> MixResult {
    mix.programs.clear();
    mix.policies.clear();
    mix.machine.topology = Topology {
        name: String::new(),
        cpus: Vec::new(),
        cores: Vec::new(),
        domains: Vec::new(),
        packages: Vec::new(),
        nodes: Vec::new(),
    };
    mix
}

#[test]
fn missing_data_are_stated_in_words() {
    let parsed = check(&html::page(&empty(sample::small())));
    assert!(text(select(&parsed, ".sentence")[0]).starts_with("No policy has an ANTT"));

    let mut mix = sample::small();
    for policy in &mut mix.policies {
        policy.comparison = None;
        for round in &mut policy.rounds {
            round.antt = Some(f64::NAN);
            round.notes = vec![
                (f64::NAN, "early".to_owned()),
                (f64::INFINITY, "late".to_owned()),
            ];
            for program in &mut round.programs {
                program.ntt = Some(f64::NAN);
                program.seconds = vec![f64::NAN];
                program.confidence = Some(f64::NAN);
            }
            for span in &mut round.timeline {
                span.end_s = f64::NAN;
            }
        }
    }
    let parsed = check(&html::page(&mix));
    assert_eq!(
        text(select(&parsed, ".sentence")[0]),
        "No policy could be compared with linux, because no other policy finished a round."
    );
    let messages: Vec<String> = select(&parsed, ".empty").into_iter().map(text).collect();
    assert!(
        messages
            .iter()
            .any(|s| s.contains("finished no repetition or has no known time alone")),
        "{messages:?}"
    );
    assert!(
        messages
            .iter()
            .any(|s| s.starts_with("No seats were recorded")),
        "{messages:?}"
    );
}

#[test]
fn page_without_curves_times_or_rounds_is_sound() {
    let mut mix = sample::small();
    mix.programs[0].curve = None;
    mix.programs[0].alone_best_seconds = None;
    mix.programs[0].alone_best_cores = None;
    mix.policies[3].rounds.clear();
    mix.policies.retain(|p| p.role != PolicyRole::BaselineAgain);
    mix.compare();
    let page = html::page(&mix);
    check(&page);
    assert!(page.contains("No curve was measured."));
}

#[test]
fn curve_file_is_standalone() {
    let one = Curve::from_rates(&[(1, 2.0)].into()).unwrap();
    let tiny = Curve::from_rates(&[(1, f64::MIN_POSITIVE), (2, f64::MAX)].into()).unwrap();
    for (name, curve) in [
        ("curve", sample::curve(0.1, 0.001, 48)),
        ("one", one),
        ("extreme", tiny),
    ] {
        let figure = CurveFigure {
            title: "7zz <a & b>",
            class: "p5",
            cores_max: 48.0,
            seats: vec![
                ("q4".to_owned(), "usher".to_owned(), 12.0),
                ("q3".to_owned(), "casas".to_owned(), f64::NAN),
            ],
            ..CurveFigure::default()
        };
        let svg = figure::curve_svg(&curve, &figure);
        save(&format!("{name}.svg"), &svg);
        let parsed = roxmltree::Document::parse(&svg).unwrap();
        assert_eq!(
            parsed.root_element().tag_name().namespace(),
            Some("http://www.w3.org/2000/svg")
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        check_plain_attributes(&parsed);
        check_figures(&svg);
    }
}

/// Checks that a figure is readable in a program without CSS: colours are presentation attributes.
fn check_plain_attributes(svg: &roxmltree::Document) {
    for node in svg.descendants().filter(|node| node.is_element()) {
        let has = |name: &str| node.attribute(name).is_some_and(|v| !v.contains("var("));
        let is_drawn = match node.tag_name().name() {
            "text" => has("fill") && has("font-size"),
            "rect" | "circle" | "polygon" => has("fill"),
            "line" | "polyline" => has("stroke"),
            _ => true,
        };
        assert!(is_drawn, "{node:?} has no colour");
    }
}

#[test]
fn curve_file_has_axes_units_and_a_legend() {
    let measured = Curve::from_rates(&[(1, 1.0), (4, 3.0)].into()).unwrap();
    let fitted = Curve::from_rates(&[(1, 1.1), (2, 1.9), (3, 2.6), (4, 3.0)].into()).unwrap();
    let svg = figure::curve_svg(
        &measured,
        &CurveFigure {
            title: "pigz",
            cores_max: 4.0,
            fitted: Some(&fitted),
            ..CurveFigure::default()
        },
    );
    let parsed = roxmltree::Document::parse(&svg).unwrap();
    for text in [
        "cores",
        "speed-up (times one core)",
        "measured",
        "fitted curve",
    ] {
        let mut texts = parsed.descendants().filter_map(|node| node.text());
        assert!(texts.any(|shown| shown == text), "no text '{text}'");
    }
    let line = parsed
        .descendants()
        .find(|n| n.tag_name().name() == "polyline" && n.attribute("class") == Some("curve"));
    let points = line.unwrap().attribute("points").unwrap();
    assert_eq!(points.split(' ').count(), 4, "all points of the fit");
    let dots = parsed
        .descendants()
        .filter(|n| n.tag_name().name() == "circle");
    assert_eq!(dots.count(), 3, "two measured points and the legend's");
}

#[test]
fn profile_page_shows_curve_and_notes() {
    let mix = sample::paper();
    let curve = sample::curve(0.1, 0.001, 48);
    let page = html::profile_page(&Profile {
        name: "numpy-svd",
        command: "python3 svd.py 2400",
        curve: &curve,
        source: "Measured here, median of 3 runs a point; progress from repetitions.",
        machine: &mix.machine,
        notes: vec!["Fastest on 30 cores; it falls beyond.".to_owned()],
    });
    save("profile.html", &page);
    let parsed = check(&page);
    assert_eq!(select(&parsed, "tbody tr").len(), curve.points().len());
}

#[test]
fn benchmark_page_shows_tables_and_notes() {
    let mix = sample::paper();
    let section = Section {
        title: "From exec to seated".to_owned(),
        items: vec![
            Item::Verdict(
                "99 % within 31 ms with 100 programs: the bar of 50 ms is met.".to_owned(),
            ),
            Item::Text("1,000 programs started one after the other.".to_owned()),
            Item::Table {
                head: ["quantile", "ms", "bar", "met"].map(str::to_owned).into(),
                rows: vec![
                    vec![
                        "median".into(),
                        Cell::Number(Some(12.34), 2),
                        Cell::Number(None, 0),
                        "".into(),
                    ],
                    vec![
                        "99 %".into(),
                        Cell::Number(Some(31.0), 2),
                        Cell::Number(Some(50.0), 0),
                        Cell::Pass(true),
                    ],
                    vec![
                        "<most>".into(),
                        Cell::Number(Some(f64::NAN), 2),
                        Cell::Number(Some(50.0), 0),
                        Cell::Pass(false),
                    ],
                ],
            },
            Item::Figure(figure::ratio(&mix).into_string()),
            Item::Lines("$ usher bench seats --json > seats.json\n<done>".to_owned()),
            Item::Note("Neighbours were busy.".to_owned()),
            Item::Table {
                head: vec!["nothing".to_owned()],
                rows: Vec::new(),
            },
        ],
    };
    let page = html::bench_page("usher bench seats", Some(&mix.machine), &[section]);
    save("bench.html", &page);
    let parsed = check(&page);
    assert_eq!(select(&parsed, "tbody tr").len(), 3);
    assert!(
        page.contains("&lt;done&gt;")
            && page.contains("This part of the report has no measurements.")
    );
}
