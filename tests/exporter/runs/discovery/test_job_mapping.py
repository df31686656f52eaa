"""Folder with the jobs of each GPU, as a prolog writes it."""

from pathlib import Path

from wattline_exporter.runs.discovery.job_mapping import JobMappingFolder


def test_job_mapping_with_an_unreadable_file_has_the_other_jobs(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("21\n")
    (tmp_path / "1").write_bytes(b"\xff\xfe22\n")
    (tmp_path / "2").write_text("21\n23\n")
    assigned = JobMappingFolder(tmp_path, resolve=lambda name: f"/slurm/{name}").read()
    assert {owner.id: job.gpus for owner, job in assigned.items()} == {
        "21": ("0", "2"),
        "23": ("2",),
    }
