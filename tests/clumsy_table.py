"""Rows of clumsy invocations: what is typed after `sage-grpo`, and a part of the sentence that must answer it."""

from dataclasses import dataclass

HUGE = 10**26


@dataclass(frozen=True)
class Clumsy:
    """A command line after `sage-grpo`, and a part of the sentence that must answer it."""

    line: str
    answer: str
    code: int = 2


def table(rows, code=2):
    """A line and its answer in each row of a text, with ` → ` between them."""
    pairs = (row.rsplit(" → ", 1) for row in rows.strip().splitlines())
    return [Clumsy(line.strip(), answer.strip(), code) for line, answer in pairs]


TABLE = [
    *table(
        f"""
        train → Missing argument
        train nosuch → there is no recipe nosuch
        train labb → did you mean lab?
        train afile → afile holds no settings
        train somedir → there is no recipe somedir
        train binary.yaml → not valid YAML
        train list.yaml → holds no settings
        train deep.yaml → nested more than
        train cyc.yaml --check → goes round in circles
        train bomb.yaml --check → aliases
        train loop.yaml --check → goes round in circles
        train folder/loop.yaml --check → goes round in circles
        train missing-base.yaml --check → there is no recipe nosuch
        train extends-list.yaml --check → extends:
        train lab policy.clip --check → key=value
        train lab =1 --check → key=value
        train lab policy..clip=1 --check → unknown key
        train lab 'policy.clip=[1' --check → not valid YAML
        train lab 'policy.clip={{' --check → not valid YAML
        train lab 'policy.clip=!!python/object/apply:os.system ["id"]' --check → not valid YAML
        train lab policy.clip=-1 --check → greater than 0
        train lab policy.clip=.nan --check → finite
        train lab policy.clip=.inf --check → finite
        train lab policy.clipp=1e-4 --check → did you mean policy.clip?
        train lab clip=1e-4 --check → did you mean policy.clip?
        train lab policy=5 --check → policy
        train lab policy.clip.x=5 --check → has no parts
        train lab optimizer.betas=[2,3] --check → optimizer.betas
        train lab optimizer.betas=[0.9] --check → optimizer.betas
        train lab optimizer.lr=1e300 --check → optimizer.lr
        train lab optimizer.lr=0 --check → greater than 0
        train lab optimizer.weight_decay=1e30 --check → optimizer.weight_decay
        train lab seed={HUGE} --check → seed
        train lab seed=-1 --check → seed
        train lab seed=1.5 --check → seed
        train lab 'run.out="a\\0b"' --check → NUL
        train lab 'model.path="a\\0b"' --check → NUL
        train lab run.iterations=0 --check → greater than or equal to 1
        train lab run.iterations=many --check → run.iterations
        train lab run.trackers=[nosuch] --check → nosuch
        train lab rewards=[] --check → rewards
        train lab monitors=5 --check → monitors
        train lab 'rewards=[{{}}]' --check → rewards.0.type
        train lab 'rewards=[{{type: motoin}}]' --check → did you mean
        train lab 'rewards=[{{type: motion, optoins: {{}}}}]' --check → did you mean
        train lab 'rewards=[{{type: ":"}}]' --check → package.module:
        train lab 'rewards=[{{type: ".x:y"}}]' --check → package.module:
        train lab 'rewards=[{{type: "x:"}}]' --check → package.module:
        train lab 'rewards=[{{type: "nosuch.module:y"}}]' run.out=o run.iterations=1 → nosuch
        train lab 'rewards=[{{type: ":"}}]' run.out=o run.iterations=1 → package.module:
        train lab 'rewards=[{{type: http, options: {{url: 5}}}}]' run.out=o run.iterations=1 → url
        train lab 'rewards=[{{type: http, options: {{url: "ftp://x"}}}}]' run.out=o run.iterations=1 → http
        train lab 'rewards=[{{type: http}}]' run.out=o run.iterations=1 → url
        train lab model.type=nosuch --check → nosuch
        train lab 'model.type=":"' --check → package.module:
        train lab sampling.kernel=sagee --check → sage
        train lab sampling.steps=100000000 --check → sampling.steps
        train lab sampling.eta=1e300 --check → sampling.eta
        train lab sampling.shift=1e300 --check → sampling.shift
        train lab parallel.processes=3 --check → use 192 rollouts
        train lab parallel.sequence=2 --check → processes
        train lab policy.objective=gpro --check → grpo
        train lab policy.num_generations=1 --check → greater than or equal to 2
        train lab kl.low=1 --check → above high
        train lab tuning.device=gpu0 run.out=o run.iterations=1 → gpu0
        train lab run.out=afile run.iterations=1 → afile is a file
        train lab run.out=afile/sub run.iterations=1 → afile is a file
        train lab run.out=/proc/nope run.iterations=1 → /proc/nope cannot be written
        train lab run.out=o run.checkpoints=afile run.iterations=1 → afile
        train lab run.out=o run.checkpoints=ftp://127.0.0.1:1/x run.iterations=1 → ftp://127.0.0.1:1/x
        train lab run.out=o run.checkpoints=nosuch://x run.iterations=1 → nosuch://x
        train lab run.out=o prompts.path=nosuch.txt run.iterations=1 → nosuch.txt
        train lab run.out=o prompts.path=p.txt run.iterations=1 → a cat
        train lab run.out=o prompts.path=img.jsonl run.iterations=1 → no image 'nosuch.png'
        train lab run.out=o prompts.path=empty.txt run.iterations=1 → empty.txt
        train lab run.out=o prompts.path=somedir run.iterations=1 → somedir
        train lab run.out=o prompts.path=binary.csv run.iterations=1 → binary.csv
        train lab run.out=o model.path=nosuch run.iterations=1 → nosuch
        train lab --cheque → No such option
        """
    ),
    *table(
        """
        plan → Missing argument
        plan nosuch → there is no recipe nosuch
        plan lab --gpu h1000 → h100
        plan lab --gpus 0 → --gpus
        plan lab --price inf → --price
        plan lab --price nan → --price
        plan lab --price -1 → --price
        plan lab --sweep gpus → gpus
        plan lab --sweep gpus=a,b → gpus
        plan lab --sweep nosuch=1,2 → nosuch
        plan lab --sweep gpus=0 → gpus
        plan lab --sweep 'gpus=1,2' --picture /proc/x.png → /proc
        plan lab --sweep 'gpus=1,2' --picture somedir → somedir
        plan lab --sweep 'gpus=1,2' --picture afile/x.png → afile is a file
        plan lab --sweep 'gpus=1,2' --picture out.xyz → xyz
        plan lab --calibration nosuch.yaml → nosuch.yaml
        plan lab --calibration list.yaml → list.yaml
        plan lab --measured somedir → is not a run
        plan lab 'policy.clip=[1' → not valid YAML
        """
    ),
    *table(
        """
        report → Missing argument
        report nosuch → there is no nosuch
        report afile → is a file
        report somedir → is not a run
        report words → words/config.yaml
        report infinite --out x.html --megabytes inf → --megabytes
        report infinite --price inf → --price
        report infinite --price nan → --price
        report infinite --smooth 2 → --smooth
        report infinite --x days → --x
        report infinite infinite → given twice
        report infinite --out /proc/x.html → /proc
        report infinite --out somedir → somedir
        report infinite --out afile/x.html → afile
        report processes → processes/config.yaml
        report deeprun → not valid YAML
        """
    ),
    *table(
        f"""
        explain --kernel sagee → sage
        explain --steps 0 → steps:
        explain --steps 100000000 → steps:
        explain --steps x → --steps
        explain --shift nan → --shift
        explain --shift inf → --shift
        explain --shift 0 → shift:
        explain --shift -3 → shift:
        explain --eta nan → --eta
        explain --eta 1e300 → eta:
        explain --eta -1 → eta:
        explain --order 3 → --order
        explain --plot afile/x.png → afile is a file
        explain --plot somedir → somedir
        explain --plot x.xyz → xyz
        sample → Missing argument
        sample nosuch → nosuch
        sample lab --prompt a --out afile → afile is a file
        sample lab --prompt a --out afile/sub → afile is a file
        sample lab --prompt a --out /proc/x → /proc/x cannot be written
        sample lab --prompt 'a red circle moving left' --image nosuch.png → nosuch.png
        sample lab --prompt 'a red circle moving left' --image p.png → image
        sample lab --image p.png → give one image a prompt
        sample lab --count 0 → --count
        sample lab --seed {HUGE} → --seed
        sample lab --seed -1 → --seed
        sample infinite --prompt 'a red circle moving left' --out o → checkpoint
        sample somedir → somedir
        export → Missing
        export nosuch --out o → nosuch
        export lab --out o → lab
        export infinite --out somedir → is there already
        export infinite --out afile/x → afile is a file
        export infinite --out o → checkpoint
        export infinite --out o --dtype float7 → --dtype
        eval → Missing argument
        eval nosuch → nosuch
        eval a=lab a=lab --limit 1 --seeds 1 --out o → a
        eval =lab --limit 1 --seeds 1 --out o → did you mean lab?
        eval a= --limit 1 --seeds 1 --out o → names no path
        eval lab --out afile --limit 1 --seeds 1 → afile is a file
        eval lab --out /proc/x --limit 1 --seeds 1 → /proc/x cannot be written
        eval lab --seeds 0 → --seeds
        eval lab --scorer motoin --limit 1 --seeds 1 --out o → motion
        eval lab --scorers deep.yaml --limit 1 --seeds 1 --out o → nested more than
        eval lab --scorers nosuch.yaml --limit 1 --seeds 1 --out o → nosuch.yaml
        eval lab --scorers list.yaml --limit 1 --seeds 1 --out o → rewards.0
        eval lab --prompts longid.jsonl --limit 1 --seeds 1 --out o → id
        eval lab --prompts nosuch.txt --limit 1 --seeds 1 --out o → nosuch.txt
        eval lab --prompts p.txt --limit 1 --seeds 1 --out o → names none of
        eval lab --tag nosuch=1 --limit 1 --seeds 1 --out o → nosuch
        eval lab --weights a=b --limit 1 --seeds 1 --out o → a=b
        eval lab --weights a=nan --limit 1 --seeds 1 --out o → a=nan
        """
    ),
    *table(
        f"""
        lab --out afile → afile is a file
        lab --seed {HUGE} --iterations 1 --samples 48 --out o → --seed
        lab --iterations 0 → --iterations
        lab nosuch → No such command
        lab reproduce --out x --seeds 20 → is now python -m research reproduce, in a clone
        lab text --out afile → afile is a file
        lab text --base nosuch --out o → nosuch
        lab sound --out afile → afile is a file
        lab sound --base nosuch --out o --iterations 1 --samples 48 → nosuch
        lab pretrain --out afile --steps 1 → afile is a file
        lab pretrain --out o --world cubes → --world
        lab pretrain --out o --width 10 → use 8 or 12
        rehearse nosuch → there is no recipe nosuch
        rehearse lab --out afile --processes 1 → afile is a file
        rehearse lab --processes 9 → --processes
        rehearse lab --full-size --fake-cuda → one of them
        first-run nosuch → there is no recipe nosuch
        first-run lab --out afile --iterations 2 → afile is a file
        first-run lab --out o --iterations 1 → --iterations
        first-run lab --out o --gpu nosuch --iterations 2 → nosuch
        tune nosuch → there is no recipe nosuch
        tune lab --out afile --passes 1 → afile is a file
        tune lab --try 'optimizer.lr=[1,{{' --out o → not valid YAML
        tune lab --try optimizer.lr --out o → optimizer.lr
        tune lab --try optimizer.lrr=1,2 --out o → optimizer.lr
        tune lab --passes 1 --hours 1 --out o → not both
        tune lab --hours nan --out o → --hours
        tune lab --passes inf --out o → --passes
        tune lab --keep 1 --out o → --keep
        paper nosuch → nosuch
        paper table2 --base nosuch → there is no recipe nosuch
        paper table2 --price inf → --price
        paper table2 --base lab-paper --out afile --run → afile is a file
        paper table2 --gpu nosuch → nosuch
        paper table2 --launcher ssh → --launcher
        """
    ),
    *table(
        f"""
        rewards → Usage
        rewards score nosuch --reward motion → nosuch
        rewards score vids --reward motion --out afile → afile is a file
        rewards score vids --reward motoin → motion
        rewards score vids --rewards deep.yaml → nested more than
        rewards score vids --rewards nosuch.yaml → nosuch.yaml
        rewards score vids --reward motion --prompts nosuch.csv → nosuch.csv
        rewards score vids --reward motion --megapixels nan → --megapixels
        rewards score somedir --reward motion → somedir
        rewards audit --reward motion --seed {HUGE} --out o → --seed
        rewards audit --reward motion --out afile → afile is a file
        rewards audit nosuch.mp4 --reward motion --out o → nosuch.mp4
        rewards audit --reward motion --prompts p.txt --out o → --prompts
        rewards convert afile o → afile
        rewards convert nosuch o → nosuch
        rewards convert somedir o → somedir
        rewards convert broken.pth o → broken.pth
        rewards reference nosuch o.safetensors → nosuch
        rewards reference vids somedir → somedir
        rewards reference vids afile/o.safetensors → afile is a file
        rewards list --jason → No such option
        serve nosuch.yaml --check → nosuch.yaml
        serve deep.yaml --check → nested more than
        serve list.yaml --check → list.yaml
        serve fleet-empty.yaml --check → scorers
        serve fleet-unknown.yaml --check → motion
        serve fleet-port.yaml --check → port
        study make nosuch → nosuch
        study make → --videos
        study make --videos a=nosuch → a=nosuch
        study make --videos a=vids --videos a=vids → tell the sources apart
        study make --videos a=vids --videos b=vids --out afile → afile is a file
        study make --videos a=vids --videos b=vids --dimension nosuch → nosuch
        study make --videos a=vids --videos b=vids --max-failed nan → --max-failed
        study make --videos a=somedir --videos b=somedir → no mp4 files
        study run nosuch → nosuch
        study run somedir → somedir
        study run study --port 99999 → --port
        study results nosuch → nosuch
        study results somedir → somedir
        study results damaged → damaged
        study size --rate 2 → --rate
        study size --rate nan → --rate
        study size --raters 1 → --raters
        doctor --jason → No such option
        nosuch → No such command
        """
    ),
    *table(
        """
        doctor --folder afile → afile
        """,
        code=1,
    ),
    *table(  # a damaged log still has a report
        """
        report infinite --out x.html → x.html
        """,
        code=0,
    ),
]
