//! A profile as JSON: the tables that pack inodes, and the counts they come from.
//!
//! Owns the keys of `shoal profile --json`. Left out: making the profile (`shoal-pack`) and reading the trees (`tree`).

use serde_json::{Value, json};
use shoal_pack::{Census, Kind, Precision, Profile, ProfileFile};

/// Maximum number of values listed for each field, the most frequent first.
const LISTED: usize = 50;

fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Seconds => "seconds",
        Precision::Nanoseconds => "nanoseconds",
    }
}

/// Reports on `file`, which was made from the `census` of `inodes` inodes.
pub fn report(inodes: usize, census: &Census, file: &ProfileFile) -> Value {
    let triplets: Vec<Value> = census
        .triplets()
        .map(|(of, users)| json!({"uid": of.uid, "gid": of.gid, "mode": format!("{:o}", of.mode), "inodes": users}))
        .collect();
    let mut frequencies = json!({});
    for precision in [Precision::Seconds, Precision::Nanoseconds] {
        // All-or-nothing counts mode, uid and gid separately; triplets are above.
        let Some(fields) = census.fields(Kind::AllOrNothing, precision) else { continue };
        for (name, counts) in fields.fields() {
            let sorted = counts.sorted();
            let listed: Vec<Value> = sorted.iter().take(LISTED).map(|(value, count)| json!([value, count])).collect();
            frequencies[precision_name(precision)][name] = json!({"values": sorted.len(), "most_frequent": listed});
        }
    }
    let profile = |profile: &Profile| {
        let fields: Vec<Value> = profile
            .describe()
            .into_iter()
            .map(|field| json!({"field": field.field, "code": field.code, "bits": field.rows}))
            .collect();
        json!({"compressor": profile.name(), "times": precision_name(profile.precision), "fields": fields})
    };
    json!({
        "command": file.comment.trim_end(),
        "inodes": inodes,
        "triplets": triplets,
        "frequencies": frequencies,
        "profiles": file.profiles.iter().map(profile).collect::<Vec<Value>>(),
    })
}
