//! Who can change a library: its file, the ones beside it, its folder, and the folders on the way to it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{distrust, distrust_above};

/// Who else can change the library or folder at `path`. `cache` is the folder below which fetched libraries lie.
pub(super) fn shared(path: &Path, cache: &Path) -> Option<String> {
    let given = std::path::absolute(path).ok()?;
    let real = path.canonicalize().ok()?;
    // A link is changed where it lies, and its target where that lies.
    let ways = if real == given { vec![real] } else { vec![given, real] };
    ways.iter().find_map(|way| on_the_way(way, cache))
}

fn on_the_way(path: &Path, cache: &Path) -> Option<String> {
    let is_folder = path.is_dir();
    let mut places = vec![path];
    let fetched = path.ancestors().skip(1).take_while(|folder| folder.starts_with(cache));
    places.extend(fetched);
    if !is_folder {
        places.extend(path.parent());
    }
    let judged = places.into_iter().find_map(judge);
    judged.or_else(|| (!is_folder).then(|| beside(path)).flatten()).or_else(|| distrust_above(path))
}

/// The libraries of one family in a folder load each other: `libcudnn_graph.so.9` beside `libcudnn.so.9`.
fn beside(library: &Path) -> Option<String> {
    let name = library.file_name()?.to_str()?;
    let family = &name[..name.find(['.', '-', '_']).unwrap_or(name.len())];
    let files = fs::read_dir(library.parent()?).ok()?.flatten();
    let mut others: Vec<_> = files
        .filter(|file| file.file_name().to_str().is_some_and(|other| other != name && other.starts_with(family)))
        .map(|file| file.path())
        .collect();
    others.sort();
    others.iter().find_map(|other| judge(other))
}

fn judge(place: &Path) -> Option<String> {
    // What cannot be looked at cannot be loaded either, and the loader says why.
    let meta = fs::metadata(place).ok()?;
    let why = distrust(&meta)?;
    (!is_of_own_group(&meta)).then(|| format!("{}: {why}", place.display()))
}

/// Whether a file of this user is open to nobody else than a group that consists of the user alone.
fn is_of_own_group(meta: &Metadata) -> bool {
    let me = rustix::process::geteuid().as_raw();
    let open_to_group_alone = meta.mode() & 0o022 == 0o020;
    // Root has no group of its own: other accounts may be in group 0.
    let own = me != 0 && meta.uid() == me && meta.gid() == me;
    own && open_to_group_alone && fs::read_to_string("/etc/group").is_ok_and(|groups| is_empty_group(&groups, me))
}

/// Whether the group of this number is listed in the text of `/etc/group`, without members.
fn is_empty_group(groups: &str, gid: u32) -> bool {
    let mut of_number = groups.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let number: u32 = fields.next()?.parse().ok()?;
        (number == gid).then(|| fields.next().unwrap_or_default().trim().is_empty())
    });
    let first = of_number.next();
    first == Some(true) && of_number.all(|empty| empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_the_users_own_when_it_is_listed_and_has_no_members() {
        let groups = "root:x:0:\nadm:x:4:syslog,me\nme:x:1000:\nteam:x:1001:me\nodd line\n";
        assert!(is_empty_group(groups, 1000));
        for other in [4, 1001, 1002] {
            assert!(!is_empty_group(groups, other), "{other}");
        }
        assert!(!is_empty_group("a:x:7:\nb:x:7:someone\n", 7), "another name of the same group has members");
    }
}
