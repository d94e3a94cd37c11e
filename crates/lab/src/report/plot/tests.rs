//! Tests of whole pictures.
//!
//! Owns: what a reader of a picture relies on, read from the SVG: gaps, intervals, the paper's
//! points, names on the axis, the legend's place, looks that differ. Rules: a test reads text and
//! shapes of the SVG, not the code that drew them. Left out: limits and ticks (`axis`).

use super::look::{LOOKS, looks};
use super::*;

fn plot(series: Vec<Series>) -> Plot {
    Plot {
        name: "p".into(),
        title: "Figure <6>".into(),
        x: "extra space (%)".into(),
        y: "time (s)".into(),
        series,
        style: Style::default(),
    }
}

/// Returns the value of an attribute.
fn attribute(element: &str, name: &str) -> String {
    let (_, rest) = element.split_once(&format!(" {name}=\"")).unwrap_or(("", ""));
    rest.split('"').next().unwrap_or("").into()
}

fn number(element: &str, name: &str) -> f64 {
    attribute(element, name).parse().unwrap_or_else(|_| panic!("{name} of {element}"))
}

/// Returns all elements of a kind, each with its text.
fn elements<'a>(svg: &'a str, kind: &str) -> Vec<&'a str> {
    svg.split(&format!("<{kind} ")).skip(1).collect()
}

/// Returns all texts with their places.
fn texts(svg: &str) -> Vec<(String, f64, f64)> {
    let text = |element: &str| {
        let body = element.split_once(">\n").and_then(|(_, rest)| rest.split_once("\n</text>"));
        (body.map_or("", |(text, _)| text).into(), number(&format!(" {element}"), "x"), number(element, "y"))
    };
    elements(svg, "text").into_iter().map(text).collect()
}

/// Returns left, top, right and bottom of the plot area.
fn area(svg: &str) -> [f64; 4] {
    let frame = elements(svg, "rect").into_iter().find(|rect| attribute(rect, "stroke") == "#000000");
    let frame = format!(" {}", frame.expect("the frame of the plot area"));
    let [x, y, width, height] = ["x", "y", "width", "height"].map(|name| number(&frame, name));
    [x, y, x + width, y + height]
}

/// Returns the corners of all strokes of a colour within the plot area.
fn strokes(svg: &str, colour: &str) -> Vec<Vec<(f64, f64)>> {
    let right = area(svg)[2];
    let corner = |corner: &str| {
        let (x, y) = corner.split_once(',').expect("a corner");
        (x.parse::<f64>().unwrap(), y.parse::<f64>().unwrap())
    };
    let lines = elements(svg, "polyline").into_iter().filter(|line| attribute(line, "stroke") == colour);
    let corners = lines.map(|line| attribute(line, "points").split_whitespace().map(corner).collect::<Vec<_>>());
    corners.filter(|line| line.iter().all(|(x, _)| *x <= right)).collect()
}

const BLACK: &str = "#000000";

#[test]
fn every_series_has_its_line_its_markers_and_its_name() {
    let series = |name: &str| Series::new(name, [(5.0, 10.0), (50.0, 7.5), (100.0, 7.0)]);
    let svg = plot(vec![series("none"), series("adaptive, P=2")]).to_svg().unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    // Three in the plot and one in the legend.
    assert_eq!(svg.matches("<circle").count(), 4);
    for text in ["none", "adaptive, P=2", "extra space (%)", "time (s)", "Figure &lt;6&gt;"] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn a_logarithmic_axis_has_its_values_as_labels_and_no_place_for_zero() {
    let series = Series::new("n", [(0.0, 1.0), (20.0, 1.0), (3000.0, 100.0)]).of_kind(Kind::Points);
    let style = Style { is_log_x: true, is_log_y: true, ..Style::default() };
    let svg = Plot { style, ..plot(vec![series]) }.to_svg().unwrap();
    assert_eq!(svg.matches("<circle").count(), 3);
    let texts: Vec<String> = texts(&svg).into_iter().map(|(text, ..)| text).collect();
    assert!(texts.contains(&"1000".into()) && !svg.contains("NaN"), "{texts:?}");
    assert!(!texts.contains(&"0".into()), "{texts:?}");
}

#[test]
fn no_text_of_the_legend_lies_in_the_plot_area() {
    let long = "asynchronous, approximate interval periodic update, with memory at the server";
    let series: Vec<Series> = (0..30).map(|n| Series::new(format!("{long} {n}"), [(1.0, 2.0), (2.0, 3.0)])).collect();
    let svg = plot(series).to_svg().unwrap();
    let [left, top, right, bottom] = area(&svg);
    for (text, x, y) in texts(&svg) {
        let is_inside = (left..=right).contains(&x) && (top..=bottom).contains(&y);
        assert!(!is_inside, "{text:?} at {x}, {y}");
    }
    let (width, height) = (number(&svg, "width"), number(&svg, "height"));
    let in_legend: Vec<_> = texts(&svg).into_iter().filter(|(_, x, _)| *x > right).collect();
    assert!(in_legend.len() >= 30 * 3, "{}", in_legend.len());
    for (text, x, y) in in_legend {
        assert!(x + text.chars().count() as f64 * 7.5 < width && y < height, "{text:?} at {x}, {y}");
    }
}

#[test]
fn a_line_is_interrupted_where_a_value_is_missing() {
    let whole = Series::new("n", [1.0, 2.0, 3.0, 4.0, 5.0].map(|x| (x, x)));
    let lines = |series: &Series| {
        let svg = plot(vec![series.clone()]).to_svg().unwrap();
        strokes(&svg, BLACK).into_iter().filter(|line| line[0].0 != line[1].0 && line[0].1 != line[1].1).count()
    };
    assert_eq!(lines(&whole), 1);
    let mut broken = whole.clone();
    broken.points[2].1 = GAP;
    assert_eq!(lines(&broken), 2);
    // On a logarithmic axis 0 has no place, which is a gap, too.
    broken.points[2].1 = 0.0;
    let style = Style { is_log_y: true, ..Style::default() };
    let svg = Plot { style, ..plot(vec![broken]) }.to_svg().unwrap();
    assert_eq!(svg.matches("<circle").count(), 5);
}

#[test]
fn empty_buckets_of_a_histogram_interrupt_its_outline() {
    let buckets = [3.0, 5.0, 0.0, 0.0, 2.0].into_iter().enumerate().map(|(at, count)| (at as f64, count));
    let series = Series::new("n", buckets).of_kind(Kind::Steps);
    for is_log_y in [false, true] {
        let style = Style { is_log_y, ..Style::default() };
        let svg = Plot { style, ..plot(vec![series.clone()]) }.to_svg().unwrap();
        let outlines = strokes(&svg, BLACK).into_iter().filter(|line| line.len() > 2);
        let outlines: Vec<_> = outlines.collect();
        assert_eq!(outlines.iter().map(Vec::len).collect::<Vec<_>>(), [6, 4], "{outlines:?}");
        let bottom = area(&svg)[3];
        assert!(outlines.iter().all(|line| line[0].1 == bottom && line[line.len() - 1].1 == bottom));
    }
}

#[test]
fn an_interval_is_a_bar_from_its_low_to_its_high() {
    let series = Series::spread("n", [(0.0, [1.0, 2.0, 4.0]), (1.0, [3.0, 3.0, 3.0])]);
    let svg = plot(vec![series]).to_svg().unwrap();
    let [_, top, _, bottom] = area(&svg);
    // The axis reaches from 0 to 4.16.
    let pixel = |y: f64| (bottom + (top - bottom) * y / 4.16).round();
    let bars = strokes(&svg, BLACK).into_iter().filter(|line| line[0].0 == line[1].0 && line[1].1 < bottom - 50.0);
    let bars: Vec<_> = bars.map(|line| (line[0].1, line[1].1)).collect();
    assert_eq!(bars, [(pixel(1.0), pixel(4.0))], "an interval without length is no bar");
    let short = Series { intervals: vec![(0.0, 1.0)], ..Series::new("n", [(0.0, 1.0), (1.0, 1.0)]) };
    let why = plot(vec![short]).to_svg().unwrap_err().to_string();
    assert_eq!(why, "plot p: series n has 1 intervals for 2 points; give each point one");
}

#[test]
fn limits_hold_the_whole_interval() {
    let svg = |high: f64| plot(vec![Series::spread("n", [(0.0, [1.0, 2.0, high])])]).to_svg().unwrap();
    assert!(texts(&svg(900.0)).iter().any(|(text, ..)| text == "800"));
    assert!(!texts(&svg(9.0)).iter().any(|(text, ..)| text == "800"));
}

#[test]
fn the_papers_points_are_hollow_and_named_so_and_have_no_line() {
    let ours = Series::new("AIPU", [(1.0, 1.0), (2.0, 2.0)]);
    let paper = Series::paper("AIPU, 1994", [(1.0, 1.5), (2.0, 2.5)]);
    let all = [Series::new("PU", [(1.0, 2.0)]), ours, paper];
    let [_, own, hollow] = looks(&all)[..] else { panic!("three looks") };
    assert_eq!((own.colour, own.marker), (hollow.colour, hollow.marker), "the paper's look like ours of that name");
    assert!(hollow.is_hollow && !own.is_hollow);
    let svg = plot(vec![Series::paper("PU", [(1.0, 1.5), (2.0, 2.5)])]).to_svg().unwrap();
    let circles = elements(&svg, "circle");
    let white = circles.iter().filter(|circle| attribute(circle, "fill") == "#FFFFFF").count();
    assert_eq!((white, circles.len()), (3, 6), "each is white with an outline");
    assert!(texts(&svg).iter().any(|(text, ..)| text == "paper: PU"));
    let slanted = strokes(&svg, BLACK).into_iter().filter(|line| line[0].0 != line[1].0 && line[0].1 != line[1].1);
    assert_eq!(slanted.count(), 0, "there is no line through the paper's points");
}

#[test]
fn a_range_of_the_paper_may_have_no_end_in_one_direction() {
    let all = f64::NEG_INFINITY..f64::INFINITY;
    let range = Series::paper_ranges("80-90%", [[(80.0, 90.0), (all.start, all.end)]]);
    let svg = plot(vec![Series::new("n", [(0.0, 1.0), (60.0, 2.0)]), range]).to_svg().unwrap();
    let [left, top, right, bottom] = area(&svg);
    let filled = elements(&svg, "rect").into_iter().find(|rect| attribute(rect, "opacity") == "0.1").unwrap();
    let filled = format!(" {filled}");
    let [x, y, width, height] = ["x", "y", "width", "height"].map(|name| number(&filled, name));
    assert_eq!((y, y + height), (top, bottom));
    assert!(x > (left + right) / 2.0 && x + width < right, "its x belongs to the limits");
}

#[test]
fn an_axis_of_names_has_each_name_and_no_number_and_no_line() {
    let names = ["create", "read", "delete all of them"].map(String::from).to_vec();
    let style = Style { names: names.clone(), ..Style::default() };
    let points = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)];
    let both = plot(vec![Series::new("a", points), Series::new("b", points)]);
    let svg = Plot { style: style.clone(), ..both }.to_svg().unwrap();
    let bottom = area(&svg)[3];
    let below: Vec<String> = texts(&svg).into_iter().filter(|(_, _, y)| *y > bottom).map(|(text, ..)| text).collect();
    assert_eq!(below, ["create", "read", "delete all of them", "extra space (%)"]);
    let centres: Vec<f64> = elements(&svg, "circle").iter().map(|circle| number(&format!(" {circle}"), "cx")).collect();
    let squares = elements(&svg, "polygon");
    assert_eq!((centres.len(), squares.len()), (4, 4));
    let corner = attribute(&format!(" {}", squares[0]), "points");
    assert!(!corner.starts_with(&format!("{},", centres[0] - 4.0)), "series stand side by side: {corner}");
    let slanted = strokes(&svg, BLACK).into_iter().filter(|line| line[0].0 != line[1].0 && line[0].1 != line[1].1);
    assert_eq!(slanted.count(), 0);
    let beyond = Plot { style, ..plot(vec![Series::new("a", [(3.0, 1.0)])]) };
    let why = beyond.to_svg().unwrap_err().to_string();
    assert_eq!(why, "plot p: series a has a point beyond the names of the axis; add its name");
}

#[test]
fn long_names_stand_upright_and_are_not_cut() {
    let names: Vec<String> = (0..12).map(|n| format!("a-name-without-any-space-{n}")).collect();
    let style = Style { names: names.clone(), ..Style::default() };
    let svg = Plot { style, ..plot(vec![Series::new("a", [(0.0, 1.0)])]) }.to_svg().unwrap();
    let height = number(&svg, "height");
    for name in names {
        let (_, _, y) = texts(&svg).into_iter().find(|(text, ..)| *text == name).expect("the name");
        assert!(y + name.len() as f64 * 8.0 < height, "{name} from {y}");
    }
}

#[test]
fn sixteen_series_differ_in_colour_and_marker_and_dash() {
    let series: Vec<Series> = (0..LOOKS).map(|n| Series::new(format!("{n}"), [(1.0, 1.0)])).collect();
    let looks = looks(&series);
    assert_eq!(looks.len(), 16);
    for (at, a) in looks.iter().enumerate() {
        for b in &looks[..at] {
            assert!(a.colour != b.colour && a.marker != b.marker && a.dash != b.dash, "{a:?} {b:?}");
        }
    }
}

#[test]
fn every_colour_stands_out_on_white() {
    let series: Vec<Series> = (0..LOOKS).map(|n| Series::new(format!("{n}"), [(1.0, 1.0)])).collect();
    for look in looks(&series) {
        let part = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.03928 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        let light = 0.2126 * part(look.colour.0) + 0.7152 * part(look.colour.1) + 0.0722 * part(look.colour.2);
        let contrast = 1.05 / (light + 0.05);
        assert!(contrast >= 3.0, "{:?}: {contrast}", look.colour);
    }
}

#[test]
fn nothing_to_draw_is_an_error_and_a_single_point_is_not() {
    assert!(plot(vec![]).to_svg().is_err());
    assert!(plot(vec![Series::new("n", [(1.0, f64::NAN)])]).to_svg().is_err());
    assert!(plot(vec![Series::new("n", [(1.0, GAP)])]).to_svg().is_err());
    assert!(plot(vec![Series::new("n", [(1.0, 0.0)])]).to_svg().is_ok());
    let style = Style { is_log_x: true, has_zero_x: true, ..Style::default() };
    assert!(Plot { style, ..plot(vec![Series::new("n", [(0.0, 1.0)])]) }.to_svg().is_ok(), "zero alone");
}
